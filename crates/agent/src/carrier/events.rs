//! A carrier that sends CloudEvents over HTTPS.
//!
//! Each event is a small message with the verdict, for the queues and topics of any provider. With an object
//! store, the message references the signed report there; otherwise it contains the report.

use std::io;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use landfall_fetch::objects::Source;
use landfall_fetch::{Exchange, FetchError, Fetcher, Method};
use landfall_model::envelope::{Envelope, EnvelopeError, ReportId};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::objects::{judged, key};
use super::{Carrier, CarryError, NetworkError, ObjectStore, node_name, runtime};

/// The event type; an incompatible change gets a new one.
const TYPE: &str = "dev.landfall.report.v1";
/// Largest report inside a message: SNS and SQS accept 256 KiB including the wrapping.
const MAX_INSIDE: usize = 192 << 10;
const PATIENCE: Duration = Duration::from_secs(20);
/// Only the beginning of a response body is used.
const MAX_ANSWER: u64 = 64 << 10;
/// Characters of a receiver's error message that are logged.
const MAX_REASON: usize = 200;

/// A carrier to a receiver of CloudEvents.
#[expect(missing_debug_implementations, reason = "leads to a token")]
pub struct Events {
    url: String,
    /// Read for each request, because the file may be renewed.
    token: Option<PathBuf>,
    store: Option<ObjectStore>,
    authority: Option<PathBuf>,
    /// Created at first use: the CA file may be written during the boot.
    fetcher: OnceLock<Fetcher>,
    runtime: Runtime,
}

#[derive(Debug, thiserror::Error)]
pub enum EventsError {
    #[error("invalid events URL `{0}`: must be `https://…`, or `http://` to this machine")]
    Address(String),
    #[error("cannot prepare the network")]
    Network(#[source] NetworkError),
}

#[derive(Debug, thiserror::Error)]
enum SendError {
    #[error("cannot read the token for events in `{}`", path.display())]
    Token {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot prepare the way to the receiver of events")]
    Client(#[source] FetchError),
    #[error("cannot send the event")]
    Send(#[source] FetchError),
    #[error("the receiver of events answered {status}: {reason}")]
    Refused { status: u16, reason: String },
    #[error("cannot read the report")]
    Envelope(#[source] EnvelopeError),
    #[error("the report is larger than {MAX_INSIDE} bytes, and there is no object store for it")]
    TooLarge,
}

// === impl Events ===

impl Events {
    /// Creates a carrier. With an object store, the report is stored before its event is sent.
    pub fn new(
        url: &str,
        authority: Option<PathBuf>,
        token: Option<PathBuf>,
        store: Option<ObjectStore>,
    ) -> Result<Self, EventsError> {
        let local = |rest: &str| {
            let authority = rest.split('/').next().unwrap_or_default();
            let host = authority.rsplit_once(':').map_or(authority, |(host, _)| host);
            ["localhost", "127.0.0.1", "[::1]"].contains(&host)
        };
        // Over plain HTTP, any observer could read the token.
        let good = url.strip_prefix("https://").is_some_and(|rest| !rest.is_empty())
            || url.strip_prefix("http://").is_some_and(local);
        if !good {
            return Err(EventsError::Address(url.to_owned()));
        }
        let runtime = runtime().map_err(EventsError::Network)?;
        Ok(Self { url: url.to_owned(), token, store, authority, fetcher: OnceLock::new(), runtime })
    }

    fn fetcher(&self) -> Result<&Fetcher, SendError> {
        if let Some(fetcher) = self.fetcher.get() {
            return Ok(fetcher);
        }
        let fetcher = Fetcher::new(self.authority.as_deref()).map_err(SendError::Client)?;
        Ok(self.fetcher.get_or_init(|| fetcher))
    }

    async fn send(&self, event: &Value) -> Result<(), SendError> {
        let mut question = Exchange {
            method: Method::Post,
            body: Some(event.to_string().into()),
            ..Exchange::get(&self.url, PATIENCE, MAX_ANSWER)
        }
        .header("content-type", "application/cloudevents+json; charset=utf-8");
        if let Some(path) = &self.token {
            let failed = |source| SendError::Token { path: path.clone(), source };
            let token = std::fs::read_to_string(path).map_err(failed)?;
            question = question.header("authorization", format!("Bearer {}", token.trim()));
        }
        let answer = self.fetcher()?.exchange(&question).await.map_err(SendError::Send)?;
        if answer.is_success() {
            return Ok(());
        }
        let reason = String::from_utf8_lossy(&answer.body);
        let reason = reason.chars().filter(|c| !c.is_control()).take(MAX_REASON).collect();
        Err(SendError::Refused { status: answer.status, reason })
    }

    /// Writes the signed report to the store and returns its location. There is no existence check first:
    /// writing the same object again is harmless, and Amazon answers such a check with 403 to callers that
    /// may put but not list.
    async fn store(&self, id: ReportId, envelope: &[u8]) -> Result<Option<String>, CarryError> {
        let Some(store) = &self.store else { return Ok(None) };
        let bucket = store.bucket()?;
        let key = key(id, envelope)?;
        bucket.put(&key, "application/json", Source::Bytes(envelope)).await.map_err(judged)?;
        Ok(Some(bucket.url(&key)))
    }
}

impl Carrier for Events {
    fn name(&self) -> &'static str {
        "events"
    }

    fn carry(&mut self, id: ReportId, envelope: &[u8]) -> Result<(), CarryError> {
        self.runtime.block_on(async {
            let reference = self.store(id, envelope).await?;
            let sent = match event(envelope, reference) {
                Ok(event) => self.send(&event).await,
                Err(error) => Err(error),
            };
            sent.map_err(|error| match error {
                SendError::Refused { status: 400 | 409 | 413 | 415 | 422, .. }
                | SendError::Envelope(_)
                | SendError::TooLarge => CarryError::Never(Box::new(error)),
                SendError::Refused { status: 403, .. } => CarryError::NotPermitted(Box::new(error)),
                error => CarryError::Later(Box::new(error)),
            })
        })
    }
}

/// Returns the message in CloudEvents' structured JSON. Its ID is the report's, so that receivers recognize a
/// redelivery.
fn event(bytes: &[u8], reference: Option<String>) -> Result<Value, SendError> {
    let envelope = Envelope::parse(bytes).map_err(SendError::Envelope)?;
    let message = envelope.message().map_err(SendError::Envelope)?;
    let mut event = json!({
        "specversion": "1.0",
        "id": message.id,
        "source": format!("/landfall/nodes/{}", node_name(&message)),
        "type": TYPE,
        "subject": message.node.hostname,
        "time": message.time,
        "datacontenttype": "application/json",
        "data": {
            "node": message.node,
            "sequence": message.sequence,
            "verdict": message.report.verdict,
        },
    });
    match reference {
        Some(reference) => event["dataref"] = reference.into(),
        None if bytes.len() > MAX_INSIDE => return Err(SendError::TooLarge),
        None => event["data"]["envelope"] = json!(envelope),
    }
    Ok(event)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use landfall_diagnose::{Engine, RuleSet};
    use landfall_model::envelope::ReportMessage;
    use landfall_model::identity::NodeIdentity;
    use landfall_testkit::serve_http;

    use super::*;

    /// A server that accepts PUT and POST and rejects all reads. A bucket with only the `PutObject`
    /// permission does the same. The channel yields the first line of each request.
    fn write_only() -> (String, mpsc::Receiver<String>) {
        let (tell, heard) = mpsc::channel();
        let origin = serve_http(move |request| {
            tell.send(request.line().to_owned()).unwrap();
            let is_read = request.line().starts_with("GET ") || request.line().starts_with("HEAD ");
            (if is_read { 403 } else { 200 }, String::new())
        });
        (origin.unwrap(), heard)
    }

    #[test]
    fn the_right_to_put_is_enough() {
        let (origin, heard) = write_only();
        let folder = tempfile::tempdir().unwrap();
        let credentials = folder.path().join("credentials");
        std::fs::write(&credentials, "aws_access_key_id = a\naws_secret_access_key = b\n").unwrap();
        let location = format!("s3://fleet?endpoint={origin}").parse().unwrap();
        let store = ObjectStore::new(location, credentials, None).unwrap();
        let mut events = Events::new(&format!("{origin}/events"), None, None, Some(store)).unwrap();
        let id = ReportId::new(jiff::Timestamp::UNIX_EPOCH, [0; 10]);
        let node = NodeIdentity {
            hostname: "n1".to_owned(),
            machine_id: None,
            boot_id: None,
            os: None,
            architecture: None,
            provider_id: None,
        };
        let report = Engine::new(RuleSet::embedded().unwrap()).unwrap().open().finish();
        let time = jiff::Timestamp::UNIX_EPOCH;
        let message = ReportMessage { id, node, boot_number: None, sequence: 1, time, report };
        let envelope = Envelope::unsigned(serde_json::to_vec(&message).unwrap());
        events.carry(id, &serde_json::to_vec(&envelope).unwrap()).unwrap();
        let heard: Vec<String> = heard.try_iter().collect();
        assert_eq!(
            heard,
            [format!("PUT /fleet/reports/n1/{id}.json HTTP/1.1"), "POST /events HTTP/1.1".to_owned()]
        );
    }
}
