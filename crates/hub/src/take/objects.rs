//! Ingest of reports that agents put into a bucket: `reports/NODE/ID.json`.
//!
//! The hub lists the bucket periodically. The store remembers the ingested reports, so a restarted hub, or another
//! hub on the same store, resumes where the last one stopped. Objects are deleted only if configured.

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

use futures_util::{StreamExt as _, stream};
use jiff::Timestamp;
use landfall_fetch::FetchError;
use landfall_fetch::objects::{Bucket, Listed, ObjectsError};
use landfall_model::chain;
use landfall_model::envelope::ReportId;

use super::{Afterwards, Bearer, TakeObjects};
use crate::enrol::Way;
use crate::hub::Hub;
use crate::name::NodeName;
use crate::problem::Problem;
use crate::receive::MAX_REPORT;
use crate::store::StoreError;

/// Directory of the reports below the bucket's prefix.
const REPORTS: &str = "reports/";
/// Maximum number of objects per pass: 100 list requests and about 15 MB of temporary memory.
const MAX_LISTED: usize = 100_000;
/// Maximum number of IDs per store query.
const ASKED_AT_ONCE: usize = 500;
/// Maximum number of nodes whose reports are fetched concurrently. Reports of one node are fetched in order.
const NODES_AT_ONCE: usize = 8;
/// Interval after which denied objects are requested again: a missing permission may have been granted.
const DENIED_FOR: Duration = Duration::from_mins(10);

#[derive(Debug, thiserror::Error)]
enum TakeError {
    #[error("cannot read the object store")]
    Objects(#[source] ObjectsError),
    #[error("cannot tell which reports are here already")]
    Store(#[source] StoreError),
    #[error("the store did not take a report: {0}")]
    Busy(String),
}

/// A report in the bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Waiting {
    id: ReportId,
    key: String,
}

/// Objects to skip in this pass. Bounded by the number of objects that a pass lists.
struct Settled {
    /// Ingested, or permanently rejected.
    done: HashSet<ReportId>,
    /// Objects that the object store refused to return or to delete, cleared periodically.
    denied: HashSet<ReportId>,
    since: Instant,
}

/// Outcome of a report in the bucket.
#[derive(Debug)]
enum Became {
    Taken,
    Refused,
    /// The object store, not the hub, rejected a request for this object.
    Denied(ObjectsError),
    /// This report and those after it are retried in a later pass.
    Later,
}

/// Outcome of the reports of one node.
#[derive(Default)]
struct Looked {
    done: Vec<ReportId>,
    denied: Vec<(ReportId, ObjectsError)>,
    trouble: Option<TakeError>,
}

/// Ingests reports forever. Objects older than `keep` are ignored: their records may already be pruned.
pub(crate) async fn take(hub: &Hub, bucket: &Bucket, from: &TakeObjects, keep: Duration) {
    let mut settled = Settled { done: HashSet::new(), denied: HashSet::new(), since: Instant::now() };
    let mut backoff = from.backoff;
    let mut was_broken = false;
    loop {
        let oldest = Timestamp::now().checked_sub(keep).unwrap_or(Timestamp::MIN);
        match round(hub, bucket, from.afterwards, oldest, &mut settled).await {
            Ok(()) => {
                backoff.reset();
                was_broken = false;
            }
            Err(error) => {
                if !was_broken {
                    tracing::warn!(error = %chain(&error), "Reports do not come from the object store.");
                }
                was_broken = true;
            }
        }
        tokio::time::sleep(backoff.pause()).await;
    }
}

async fn round(
    hub: &Hub,
    bucket: &Bucket,
    afterwards: Afterwards,
    oldest: Timestamp,
    settled: &mut Settled,
) -> Result<(), TakeError> {
    let listed = bucket.list(REPORTS, MAX_LISTED).await.map_err(TakeError::Objects)?;
    if listed.len() == MAX_LISTED {
        tracing::warn!(
            MAX_LISTED,
            "The bucket contains more reports than are read: delete old ones with a rule of the bucket or by the hub."
        );
    }
    let waiting = nodes(listed, oldest);
    let here: HashSet<ReportId> = waiting.values().flatten().map(|waiting| waiting.id).collect();
    settled.keep(&here);
    let new: Vec<ReportId> = here.into_iter().filter(|id| !settled.holds(*id)).collect();
    let mut stored = HashSet::new();
    for ids in new.chunks(ASKED_AT_ONCE) {
        stored.extend(hub.store.has(ids.to_vec()).await.map_err(TakeError::Store)?);
    }
    let (known, stored) = (&*settled, &stored);
    let looks = stream::iter(waiting.into_values()).map(|waiting| async move {
        let new = waiting.into_iter().filter(|report| !known.holds(report.id));
        Looked::at(hub, bucket, afterwards, stored, new).await
    });
    let all: Vec<Looked> = looks.buffer_unordered(NODES_AT_ONCE).collect().await;
    let mut result = Ok(());
    let mut denied = Vec::new();
    for looked in all {
        settled.done.extend(looked.done);
        denied.extend(looked.denied);
        result = result.and(looked.trouble.map_or(Ok(()), Err));
    }
    if let Some((_, error)) = denied.first() {
        // The error text names the object.
        let (reports, error) = (denied.len(), chain(error));
        tracing::warn!(reports, %error, "The object store does not return or delete some reports; they are retried in ten minutes, the others are ingested.");
    }
    settled.denied.extend(denied.into_iter().map(|(id, _)| id));
    result
}

/// Fetches a report and ingests it.
async fn one(hub: &Hub, bucket: &Bucket, report: &Waiting) -> Result<Became, TakeError> {
    let key = &report.key;
    let body = match bucket.get(key, MAX_REPORT as u64).await {
        Ok(Some(body)) => body,
        // Another process may have removed the object after it was listed.
        Ok(None) => return Ok(Became::Refused),
        Err(error) if is_unfit(&error) => {
            tracing::warn!(key, reason = %chain(&error), "A report in the object store was refused.");
            return Ok(Became::Refused);
        }
        Err(error) => return denied(error),
    };
    match hub.taken(Bearer::Way(Way::Bucket), &body).await {
        Ok(receipt) if receipt.id == report.id => Ok(Became::Taken),
        Ok(_) => {
            tracing::warn!(key, "An object holds another report than its name says.");
            Ok(Became::Refused)
        }
        Err(problem) => refused(key, problem),
    }
}

fn refused(key: &str, problem: Problem) -> Result<Became, TakeError> {
    match problem {
        // Too many new nodes in this minute.
        Problem { status: 429, .. } => Ok(Became::Later),
        Problem { retry: true, detail, .. } => Err(TakeError::Busy(detail)),
        Problem { detail, .. } => {
            tracing::warn!(key, reason = detail, "A report in the object store was refused.");
            Ok(Became::Refused)
        }
    }
}

/// Returns whether the object is invalid regardless of permissions.
fn is_unfit(error: &ObjectsError) -> bool {
    match error {
        ObjectsError::Key(_) => true,
        ObjectsError::Exchange { source, .. } => matches!(**source, FetchError::TooLong { .. }),
        _ => false,
    }
}

/// Separates objects that cannot be read from a failing store. Any writer of the bucket can add an unreadable
/// object, which must not block the others. All other errors concern the object store or the connection to it.
fn denied(error: ObjectsError) -> Result<Became, TakeError> {
    let is_no = |status: u16| (400..500).contains(&status) && !matches!(status, 408 | 429);
    match error {
        ObjectsError::Refused(refusal) if is_no(refusal.status) => {
            Ok(Became::Denied(ObjectsError::Refused(refusal)))
        }
        error => Err(TakeError::Objects(error)),
    }
}

/// Returns the reports in the bucket by node, in order. Agents name a directory after its node, without trailing
/// dots.
fn nodes(listed: Vec<Listed>, oldest: Timestamp) -> BTreeMap<NodeName, Vec<Waiting>> {
    let mut nodes: BTreeMap<NodeName, Vec<Waiting>> = BTreeMap::new();
    let young = |found: &Listed| found.modified.is_none_or(|modified| modified >= oldest);
    for Listed { key, bytes, .. } in listed.into_iter().filter(young) {
        let parts = key.strip_prefix(REPORTS).and_then(|rest| rest.split_once('/'));
        let Some((node, file)) = parts else { continue };
        let id = file.strip_suffix(".json").and_then(|id| id.parse().ok());
        let Some(id) = id.filter(|_| bytes <= MAX_REPORT as u64) else { continue };
        let Ok(node) = NodeName::new(node) else { continue };
        nodes.entry(node).or_default().push(Waiting { id, key });
    }
    for waiting in nodes.values_mut() {
        waiting.sort_by_key(|waiting| waiting.id);
    }
    nodes
}

// === impl Settled ===

impl Settled {
    fn holds(&self, id: ReportId) -> bool {
        self.done.contains(&id) || self.denied.contains(&id)
    }

    /// Drops objects that no longer exist and, every [`DENIED_FOR`], all denied ones.
    fn keep(&mut self, here: &HashSet<ReportId>) {
        self.done.retain(|id| here.contains(id));
        if self.since.elapsed() >= DENIED_FOR {
            self.denied.clear();
            self.since = Instant::now();
        }
        self.denied.retain(|id| here.contains(id));
    }
}

// === impl Looked ===

impl Looked {
    /// Ingests the new reports of a node in order.
    async fn at(
        hub: &Hub,
        bucket: &Bucket,
        afterwards: Afterwards,
        stored: &HashSet<ReportId>,
        new: impl Iterator<Item = Waiting>,
    ) -> Self {
        let mut looked = Self::default();
        for report in new {
            let became =
                if stored.contains(&report.id) { Ok(Became::Taken) } else { one(hub, bucket, &report).await };
            let became = match became {
                Ok(Became::Taken) if afterwards == Afterwards::Deleted => {
                    bucket.delete(&report.key).await.map_or_else(denied, |()| Ok(Became::Taken))
                }
                other => other,
            };
            match became {
                Ok(Became::Taken | Became::Refused) => looked.done.push(report.id),
                Ok(Became::Denied(error)) => looked.denied.push((report.id, error)),
                Ok(Became::Later) => break,
                Err(error) => {
                    looked.trouble = Some(error);
                    break;
                }
            }
        }
        looked
    }
}

#[cfg(test)]
mod tests {
    use landfall_fetch::objects::Refusal;

    use super::*;

    #[test]
    fn what_is_named_as_a_report_is_one_and_nothing_else() {
        let listed = |key: &str, bytes: u64| Listed { key: key.to_owned(), bytes, modified: None };
        let (early, late) = ("018bcfe5-6800-7fff-bfff-ffffffffffff", "018bcfe5-6801-7fff-bfff-ffffffffffff");
        let old = |key: String| Listed { modified: Some(Timestamp::UNIX_EPOCH), ..listed(&key, 9) };
        let found = nodes(
            vec![
                listed(&format!("reports/n1/{late}.json"), 9),
                listed(&format!("reports/n1/{early}.json"), 9),
                listed(&format!("reports/n2/{early}.json"), (MAX_REPORT + 1) as u64),
                listed("reports/n1/notes.json", 9),
                listed(&format!("reports/n1/deeper/{early}.json"), 9),
                listed(&format!("other/n1/{early}.json"), 9),
                listed("reports/", 0),
                // Agents never create such directory names, and some stores reject requests for them.
                listed(&format!("reports//{early}.json"), 9),
                listed(&format!("reports/n\u{1}/{early}.json"), 9),
                listed(&format!("reports/../{early}.json"), 9),
                old(format!("reports/n3/{early}.json")),
            ],
            Timestamp::UNIX_EPOCH + jiff::SignedDuration::from_secs(1),
        );
        let n1 = &found[&NodeName::new("n1").unwrap()];
        let ids: Vec<String> = n1.iter().map(|waiting| waiting.id.to_string()).collect();
        assert_eq!((found.len(), ids), (1, vec![early.to_owned(), late.to_owned()]));
    }

    #[test]
    fn too_many_new_nodes_are_no_trouble_of_the_store() {
        let became = |status| refused("reports/n1/x.json", Problem::new(status, "", ""));
        assert!(matches!(became(429), Ok(Became::Later)));
        assert!(matches!(became(403), Ok(Became::Refused)));
        assert!(matches!(became(503), Err(TakeError::Busy(_))));
    }

    fn no(status: u16) -> ObjectsError {
        let refusal = Refusal {
            doing: "get",
            key: "reports/n1/x.json".to_owned(),
            bucket: "fleet".to_owned(),
            status,
            code: String::new(),
            message: String::new(),
        };
        ObjectsError::Refused(Box::new(refusal))
    }

    #[test]
    fn an_object_nobody_may_read_is_no_trouble_of_the_store() {
        for status in [400, 403, 404, 416] {
            assert!(matches!(denied(no(status)), Ok(Became::Denied(_))), "{status}");
        }
        for status in [408, 429, 500, 503] {
            assert!(matches!(denied(no(status)), Err(TakeError::Objects(_))), "{status}");
        }
        assert!(is_unfit(&ObjectsError::Key(String::new())) && !is_unfit(&no(400)));
    }

    #[test]
    fn what_was_denied_is_tried_again_later() {
        let id = "018bcfe5-6800-7fff-bfff-ffffffffffff".parse().unwrap();
        let here = HashSet::from([id]);
        let mut settled = Settled { done: HashSet::new(), denied: here.clone(), since: Instant::now() };
        settled.keep(&here);
        assert!(settled.holds(id));
        settled.since = Instant::now().checked_sub(DENIED_FOR).unwrap();
        settled.keep(&here);
        assert!(!settled.holds(id));
    }
}
