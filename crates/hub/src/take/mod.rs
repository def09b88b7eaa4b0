//! Ingest of reports from unauthenticated sources.
//!
//! The sources are an object store, NATS, forwarded events and serial console captures. Such a report counts only by
//! the node's own signature; the first key of a node is pinned, as everywhere in the hub.

mod console;
mod events;
mod nats;
mod objects;

use std::path::PathBuf;
use std::time::Duration;

use jiff::Timestamp;
use landfall_net::Backoff;
use landfall_net::nats::{Server, is_subject};

use crate::access::Caller;
use crate::config::ConfigError;
use crate::enrol::Way;
use crate::hub::{Hub, Receipt};
use crate::objects::BucketPlace;
use crate::problem::Problem;
use crate::receive::{self, MAX_REPORT, ReportError};
use crate::store::Arrival;

pub(crate) use console::MAX_CONSOLE;
pub use events::{CloudEvent, EventError};
pub(crate) use nats::{live_tls, take as take_from_nats};
pub(crate) use objects::take as take_from_objects;

/// Maximum interval between passes over a bucket after failures.
const LONGEST_PAUSE: Duration = Duration::from_mins(10);

/// Sources that the hub reads by itself.
#[derive(Clone, Debug, Default)]
pub struct Take {
    pub objects: Option<TakeObjects>,
    pub nats: Option<TakeNats>,
}

/// A bucket into which agents put reports.
#[derive(Clone, Debug)]
pub struct TakeObjects {
    pub place: BucketPlace,
    /// Pauses between passes over the bucket.
    pub backoff: Backoff,
    pub afterwards: Afterwards,
}

/// Treatment of an object whose report is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Afterwards {
    Kept,
    Deleted,
}

/// A stream to which agents publish reports.
#[derive(Clone, Debug)]
pub struct TakeNats {
    /// Servers of one cluster, tried in turn.
    pub servers: Vec<Server>,
    /// Prefix of the subjects; the node's name follows it.
    pub subject: String,
    /// Durable consumer by which the server remembers the acknowledged messages. Hubs on the same store share one.
    pub durable: String,
    pub authority: Option<PathBuf>,
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// A token on one line, or a user and a password on two lines; read at each use.
    pub login: Option<PathBuf>,
}

/// The party that delivers a report.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bearer<'a> {
    /// A source to which many parties can write.
    Way(Way),
    Caller(&'a Caller),
}

// === impl TakeObjects ===

impl TakeObjects {
    /// Parses `s3://BUCKET/PREFIX?credentials-file=FILE`, with the bucket and the prefix of the agents.
    pub fn parse(text: &str, every: Duration, afterwards: Afterwards) -> Result<Self, ConfigError> {
        let place = BucketPlace::parse(text).map_err(ConfigError::TakeObjects)?;
        let backoff = Backoff::new(every, LONGEST_PAUSE.max(every)).map_err(ConfigError::Every)?;
        Ok(Self { place, backoff, afterwards })
    }
}

// === impl TakeNats ===

impl TakeNats {
    /// Builds the configuration without CA, certificate and login files.
    pub fn parse(servers: &[String], subject: &str, durable: &str) -> Result<Self, ConfigError> {
        let servers = servers.iter().map(|text| text.parse()).collect::<Result<_, _>>();
        if !is_subject(subject) {
            return Err(ConfigError::Subject(subject.to_owned()));
        }
        if !is_subject(durable) || durable.contains('.') {
            return Err(ConfigError::Subject(durable.to_owned()));
        }
        Ok(Self {
            servers: servers.map_err(ConfigError::TakeNats)?,
            subject: subject.to_owned(),
            durable: durable.to_owned(),
            authority: None,
            certificate: None,
            login: None,
        })
    }
}

// === impl Hub ===

impl Hub {
    /// Ingests a report that counts only by its signature.
    pub(crate) async fn taken(&self, bearer: Bearer<'_>, body: &[u8]) -> Result<Receipt, Problem> {
        let arrival = self.signed(bearer, body)?;
        self.stored(arrival).await
    }

    pub(crate) async fn stored(&self, arrival: Arrival) -> Result<Receipt, Problem> {
        let id = arrival.id;
        let outcome = self.store.accept(vec![arrival]).await?.pop();
        let outcome = outcome.ok_or_else(|| Problem::new(500, "Defect", "the store gave no answer"))?;
        self.counters.count(outcome.as_ref().ok().copied());
        Ok(Receipt { id, outcome: outcome? })
    }

    fn signed(&self, bearer: Bearer<'_>, body: &[u8]) -> Result<Arrival, Problem> {
        let admitted = || {
            let arrival = signed(body)?;
            let standing = match bearer {
                Bearer::Way(way) => self.standing_of_others(way),
                Bearer::Caller(caller) => self.standing_of_passed_on(caller, &arrival.node)?,
            };
            Ok(Arrival { standing, ..arrival })
        };
        admitted().inspect_err(|_: &Problem| self.counters.count(None))
    }
}

fn signed(body: &[u8]) -> Result<Arrival, Problem> {
    if body.len() > MAX_REPORT {
        return Err(Problem::new(413, "Too large", format!("a report is no larger than {MAX_REPORT} bytes")));
    }
    believed(receive::report(body, Timestamp::now()))
}

/// Rejects reports without a signature.
fn believed(report: Result<Arrival, ReportError>) -> Result<Arrival, Problem> {
    let arrival = report?;
    if arrival.key.is_none() {
        return Err(Problem::new(
            403,
            "Not permitted",
            "it is not signed, and this carrier does not authenticate senders",
        ));
    }
    Ok(arrival)
}

#[cfg(test)]
mod tests {
    use landfall_model::envelope::Envelope;
    use landfall_pki::SigningKey;
    use serde_json::json;

    use super::*;

    fn envelope() -> Envelope {
        let (key, _) = SigningKey::generate().unwrap();
        let message = json!({
            "id": "01890a5d-ac96-774b-bcce-b302099a8057", "node": {"hostname": "n1"}, "sequence": 7,
            "time": "2026-01-02T03:04:05Z",
            "report": {
                "format": 1, "findings": [], "timeline": [], "sources": [], "nextSteps": [],
                "verdict": {"state": "running", "title": "t", "confidence": 0.97}
            }
        });
        key.seal(message.to_string().into_bytes())
    }

    fn json(envelope: &Envelope) -> Vec<u8> {
        serde_json::to_vec(envelope).unwrap()
    }

    #[test]
    fn a_report_is_the_same_however_others_laid_it_out() {
        let envelope = envelope();
        let plain = signed(&json(&envelope)).unwrap();
        // Its members sorted, with blanks and line breaks.
        let pretty = serde_json::to_value(&envelope).unwrap();
        let pretty = signed(&serde_json::to_vec_pretty(&pretty).unwrap()).unwrap();
        assert_eq!((plain.digest, plain.id), (pretty.digest, pretty.id));
        assert!(pretty.key.is_some());
    }

    #[test]
    fn what_is_not_signed_is_not_believed() {
        let sent = envelope();
        assert!(signed(&json(&sent)).is_ok());
        let bare = Envelope::unsigned(sent.payload.clone());
        assert_eq!(signed(&json(&bare)).unwrap_err().status, 403);
        let message = String::from_utf8(sent.payload.clone()).unwrap();
        let payload = message.replace("\"sequence\":7", "\"sequence\":8").into_bytes();
        assert_eq!(signed(&json(&Envelope { payload, ..sent })).unwrap_err().status, 403);
        assert_eq!(signed(b"{").unwrap_err().status, 422);
        assert_eq!(signed(&vec![b' '; MAX_REPORT + 1]).unwrap_err().status, 413);
    }
}
