//! Takes what agents put into a bucket: `reports/NODE/ID.json`.
//!
//! The bucket is listed every now and then. Which reports were taken is what the store remembers, so a hub that starts anew,
//! or another one with the same store, goes on where the last one was. Nothing is deleted unless it is asked for.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use landfall_model::chain;
use landfall_model::envelope::ReportId;
use landfall_objects::{Bucket, Listed, ObjectsError};
use landfall_wire::Backoff;

use super::{Afterwards, Bearer};
use crate::hub::Hub;
use crate::receive::MAX_REPORT;
use crate::store::StoreError;

/// Where agents put reports, below the bucket's prefix.
const REPORTS: &str = "reports/";
/// Objects looked at in a round: a hundred questions, and some fifteen megabytes for a moment.
const MAX_LISTED: usize = 100_000;
/// Ids the store is asked about at once.
const ASKED_AT_ONCE: usize = 500;
/// Nodes whose reports are fetched at once. Those of one node come one after the other, in their order.
const NODES_AT_ONCE: usize = 8;
const LONGEST_PAUSE: Duration = Duration::from_mins(10);

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

/// Takes for ever.
pub(crate) async fn take(hub: &Hub, bucket: &Bucket, every: Duration, afterwards: Afterwards) {
    // Taken, or refused for good; never more than a round looks at.
    let mut settled = HashSet::new();
    let mut backoff = Backoff::new(every, LONGEST_PAUSE);
    let mut was_broken = false;
    loop {
        match round(hub, bucket, afterwards, &mut settled).await {
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
    settled: &mut HashSet<ReportId>,
) -> Result<(), TakeError> {
    let listed = bucket.list(REPORTS, MAX_LISTED).await.map_err(TakeError::Objects)?;
    if listed.len() == MAX_LISTED {
        tracing::warn!(
            MAX_LISTED,
            "The bucket holds more reports than are looked at: have old ones deleted, by a rule of the bucket or by the hub."
        );
    }
    let waiting = nodes(listed);
    let here: HashSet<ReportId> = waiting.values().flatten().map(|waiting| waiting.id).collect();
    settled.retain(|id| here.contains(id));
    let new: Vec<ReportId> = here.into_iter().filter(|id| !settled.contains(id)).collect();
    let mut stored = HashSet::new();
    for ids in new.chunks(ASKED_AT_ONCE) {
        stored.extend(hub.store.has(ids.to_vec()).await.map_err(TakeError::Store)?);
    }
    let known = &*settled;
    let fetched = stream::iter(waiting.into_values()).map(|waiting| {
        let stored = &stored;
        async move {
            let mut done = Vec::new();
            for report in waiting.into_iter().filter(|report| !known.contains(&report.id)) {
                let taken = stored.contains(&report.id)
                    || match one(hub, bucket, &report).await {
                        Ok(taken) => taken,
                        Err(error) => return (done, Err(error)),
                    };
                if taken
                    && afterwards == Afterwards::Deleted
                    && let Err(error) = bucket.delete(&report.key).await
                {
                    return (done, Err(TakeError::Objects(error)));
                }
                done.push(report.id);
            }
            (done, Ok(()))
        }
    });
    let all: Vec<(Vec<ReportId>, Result<(), TakeError>)> =
        fetched.buffer_unordered(NODES_AT_ONCE).collect().await;
    let mut result = Ok(());
    for (done, ended) in all {
        settled.extend(done);
        result = result.and(ended);
    }
    result
}

/// Fetches a report and takes it in; whether it was taken.
async fn one(hub: &Hub, bucket: &Bucket, report: &Waiting) -> Result<bool, TakeError> {
    // Somebody else may have removed it since it was listed.
    let body = bucket.get(&report.key, MAX_REPORT as u64).await.map_err(TakeError::Objects)?;
    let Some(body) = body else { return Ok(false) };
    match hub.taken(Bearer::Nobody, &body).await {
        Ok(receipt) if receipt.id == report.id => Ok(true),
        Ok(_) => {
            tracing::warn!(key = report.key, "An object holds another report than its name says.");
            Ok(false)
        }
        Err(problem) if problem.retry => Err(TakeError::Busy(problem.detail)),
        Err(problem) => {
            tracing::warn!(
                key = report.key,
                reason = problem.detail,
                "A report in the object store was refused."
            );
            Ok(false)
        }
    }
}

/// The reports among what is in the bucket, by the folder of their node, in order.
fn nodes(listed: Vec<Listed>) -> BTreeMap<String, Vec<Waiting>> {
    let mut nodes: BTreeMap<String, Vec<Waiting>> = BTreeMap::new();
    for Listed { key, bytes, .. } in listed {
        let parts = key.strip_prefix(REPORTS).and_then(|rest| rest.split_once('/'));
        let Some((node, file)) = parts else { continue };
        let id = file.strip_suffix(".json").and_then(|id| id.parse().ok());
        let Some(id) = id.filter(|_| bytes <= MAX_REPORT as u64) else { continue };
        let node = node.to_owned();
        nodes.entry(node).or_default().push(Waiting { id, key });
    }
    for waiting in nodes.values_mut() {
        waiting.sort_by_key(|waiting| waiting.id);
    }
    nodes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_named_as_a_report_is_one_and_nothing_else() {
        let listed = |key: &str, bytes: u64| Listed { key: key.to_owned(), bytes, modified: None };
        let (early, late) = ("018bcfe5-6800-7fff-bfff-ffffffffffff", "018bcfe5-6801-7fff-bfff-ffffffffffff");
        let found = nodes(vec![
            listed(&format!("reports/n1/{late}.json"), 9),
            listed(&format!("reports/n1/{early}.json"), 9),
            listed(&format!("reports/n2/{early}.json"), (MAX_REPORT + 1) as u64),
            listed("reports/n1/notes.json", 9),
            listed(&format!("reports/n1/deeper/{early}.json"), 9),
            listed(&format!("other/n1/{early}.json"), 9),
            listed("reports/", 0),
        ]);
        let ids: Vec<String> = found["n1"].iter().map(|waiting| waiting.id.to_string()).collect();
        assert_eq!((found.len(), ids), (1, vec![early.to_owned(), late.to_owned()]));
    }
}
