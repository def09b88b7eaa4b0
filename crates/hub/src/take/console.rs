//! Ingest of serial console captures from clouds and hypervisors.
//!
//! The reports that an agent wrote are extracted from the other output.

use bytes::Bytes;
use jiff::Timestamp;
use landfall_evidence::console::{Finder, Record};

use super::believed;
use crate::access::Caller;
use crate::hub::{BatchItem, Hub, Receipt};
use crate::limits::permit;
use crate::problem::Problem;
use crate::receive;
use crate::store::Arrival;

/// Maximum size of a capture. Clouds keep between 64 KiB and 1 MiB of a console; a hypervisor's log may be longer.
pub(crate) const MAX_CONSOLE: usize = 16 << 20;
// === impl Hub ===

impl Hub {
    /// Ingests every complete report of a console, the latest last. A report that was shortened to fit has no
    /// signature and is rejected.
    pub(crate) async fn console(&self, caller: &Caller, log: Bytes) -> Result<Vec<BatchItem>, Problem> {
        caller.may_report()?;
        let permit = permit(&self.consoles, caller, "too many consoles are being processed").await?;
        let stopped = |_| Problem::new(500, "Defect", "the console could not be read");
        let look = move || {
            let mut finder = Finder::default();
            log.split(|byte| *byte == b'\n').for_each(|line| finder.line(line));
            finder.records().into_iter()
        };
        let (mut records, mut permit) = permit.run_blocking(look).await.map_err(stopped)?;
        let mut results = Vec::new();
        loop {
            // Sequential, because all reports together are many times the size of the console.
            let next = move || {
                let record = records.next();
                let read = |record: Record| believed(receive::opened(&record.envelope, Timestamp::now()));
                (record.map(read), records)
            };
            let read;
            ((read, records), permit) = permit.run_blocking(next).await.map_err(stopped)?;
            let Some(read) = read else { break };
            results.push(match self.taken_from_console(caller, read).await {
                Ok(receipt) => BatchItem::Taken(receipt),
                Err(problem) if problem.retry => return Err(problem),
                Err(problem) => BatchItem::Refused { problem },
            });
        }
        if results.is_empty() {
            return Err(Problem::new(422, "Not a report", "there is no whole report on this console"));
        }
        Ok(results)
    }

    async fn taken_from_console(
        &self,
        caller: &Caller,
        read: Result<Arrival, Problem>,
    ) -> Result<Receipt, Problem> {
        let admitted = read.and_then(|arrival| {
            let standing = self.standing_of_passed_on(caller, &arrival.node)?;
            Ok(Arrival { standing, ..arrival })
        });
        self.stored(admitted.inspect_err(|_| self.counters.count(None))?).await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::access::Access;
    use crate::bundles::BundleLimits;
    use crate::limits::CONSOLES;
    use crate::objects::Objects;
    use crate::roles::Roles;
    use crate::store::SqliteStore;

    #[tokio::test(start_paused = true)]
    async fn consoles_wait_for_each_other_and_those_who_may_not_report_for_nobody() {
        let folder = tempfile::tempdir().unwrap();
        let store = Arc::new(SqliteStore::open(&folder.path().join("hub.db")).unwrap());
        let objects = Objects::folder(&folder.path().join("bundles")).unwrap();
        let limits = BundleLimits { packed: 1 << 20 };
        let roles = Roles::new(Vec::new(), None);
        let hub = Hub::new(store, objects, Access::default(), limits, roles).unwrap();
        let send =
            async |caller: &Caller| hub.console(caller, Bytes::from_static(b"noise\n")).await.unwrap_err();
        let all: Vec<_> = std::iter::from_fn(|| hub.consoles.try_acquire(None)).collect();
        let begun = tokio::time::Instant::now();
        assert_eq!(send(&Caller::Viewer("vic".to_owned())).await.status, 403);
        assert_eq!(begun.elapsed(), Duration::ZERO);
        let busy = send(&Caller::Anyone).await;
        assert_eq!(
            (busy.status, busy.retry, begun.elapsed()),
            (503, true, CONSOLES.queue_timeout),
            "{busy:?}"
        );
        drop(all);
        assert_eq!(send(&Caller::Anyone).await.status, 422, "it is looked at, and holds nothing");
        assert_eq!(hub.consoles.available(), CONSOLES.total, "the permit ends with the work");
    }
}
