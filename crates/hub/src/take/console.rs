//! The capture of a serial console, as clouds and hypervisors keep it: the reports an agent wrote to it are found among
//! everything else.

use bytes::Bytes;
use landfall_evidence::console::Finder;

use super::Bearer;
use crate::access::Caller;
use crate::hub::{BatchItem, Hub};
use crate::problem::Problem;

/// Clouds keep between 64 KiB and a megabyte of a console; a hypervisor's log may be longer.
pub(crate) const MAX_CONSOLE: usize = 16 << 20;

// === impl Hub ===

impl Hub {
    /// Takes in every whole report of a console, the latest last. One that was cut to fit has no signature, and is refused.
    pub(crate) async fn console(&self, caller: &Caller, log: Bytes) -> Result<Vec<BatchItem>, Problem> {
        let found = tokio::task::spawn_blocking(move || {
            let mut finder = Finder::default();
            log.split(|byte| *byte == b'\n').for_each(|line| finder.line(line));
            finder.records()
        });
        let found = found.await.map_err(|_| Problem::new(500, "Defect", "the console could not be read"))?;
        if found.is_empty() {
            return Err(Problem::new(422, "Not a report", "there is no whole report on this console"));
        }
        let mut results = Vec::new();
        for record in found {
            results.push(match self.taken(Bearer::Caller(caller), &record.bytes).await {
                Ok(receipt) => BatchItem::Taken(receipt),
                Err(problem) if problem.retry => return Err(problem),
                Err(problem) => BatchItem::Refused { problem },
            });
        }
        Ok(results)
    }
}
