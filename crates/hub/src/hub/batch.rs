//! Batches of reports.

use bytes::Bytes;
use jiff::Timestamp;
use landfall_model::envelope::ReportId;
use landfall_net::serve::Permit;
use serde::Serialize;

use super::{Hub, Receipt};
use crate::access::Caller;
use crate::limits::permit;
use crate::problem::Problem;
use crate::receive;
use crate::store::Arrival;
use crate::unpack::{Packing, unpack};

/// Maximum decompressed size of a batch.
pub(crate) const MAX_BATCH: usize = 16 << 20;
/// Maximum number of reports per batch.
const MAX_BATCH_REPORTS: usize = 1000;
/// Outcome of one report of a batch.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) enum BatchItem {
    Taken(Receipt),
    Refused { problem: Problem },
}

// === impl Hub ===

impl Hub {
    /// Acquires the permit that is required before the first byte of a batch is read.
    pub(crate) async fn batch_permit(&self, caller: &Caller) -> Result<Permit, Problem> {
        caller.may_report()?;
        permit(&self.batches, caller, "too many batches are being taken in").await
    }

    /// Stores a batch with one report per line. Each report is authorized separately, in order.
    pub(crate) async fn batch(
        &self,
        permit: Permit,
        caller: &Caller,
        packing: Packing,
        body: Bytes,
    ) -> Result<Vec<BatchItem>, Problem> {
        // A thousand reports and their signatures occupy a core for a while, so the batch runs on the blocking pool.
        let read = permit.run_blocking(move || read(packing, &body)).await;
        let (lines, permit) = read.map_err(|_| Problem::new(500, "Defect", "the batch could not be read"))?;
        let mut good = Vec::new();
        let mut judged: Vec<Result<ReportId, Problem>> = Vec::new();
        for line in lines? {
            judged.push(line.and_then(|arrival| {
                let standing = self.standing(caller, &arrival.node)?;
                let id = arrival.id;
                good.push(Arrival { standing, ..arrival });
                Ok(id)
            }));
        }
        let mut outcomes = self.store.accept(good).await?.into_iter();
        drop(permit);
        let results = judged.into_iter().map(|line| {
            let receipt = line.and_then(|id| match outcomes.next() {
                Some(outcome) => Ok(Receipt { id, outcome: outcome? }),
                None => Err(Problem::new(500, "Defect", "the store gave too few answers")),
            });
            self.counters.count(receipt.as_ref().ok().map(|receipt| receipt.outcome));
            match receipt {
                Ok(receipt) => BatchItem::Taken(receipt),
                Err(problem) => BatchItem::Refused { problem },
            }
        });
        Ok(results.collect())
    }
}

fn read(packing: Packing, body: &[u8]) -> Result<Vec<Result<Arrival, Problem>>, Problem> {
    let body = unpack(packing, body, MAX_BATCH)?;
    let lines = || body.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty());
    if lines().count() > MAX_BATCH_REPORTS {
        let detail = format!("a batch has {MAX_BATCH_REPORTS} reports at most");
        return Err(Problem::new(413, "Too large", detail));
    }
    let read = |line: &[u8]| {
        if line.len() > receive::MAX_REPORT {
            return Err(Problem::new(413, "Too large", "the report is too long"));
        }
        Ok(receive::report(line, Timestamp::now())?)
    };
    Ok(lines().map(read).collect())
}
