//! Memory limit of reports that wait for the disk.
//!
//! Reports of a few kilobytes and batches of many megabytes share one queue, so their number does not limit memory.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{Arrival, StoreError};

/// Unit of the limit, which is 128 MiB of queued and current writes: a few seconds of the write rate of one machine.
/// Further requests get 503, which costs less than delaying every request.
const UNIT: usize = 1 << 10;
const UNITS: usize = 128 << 10;
/// Memory of a report besides its texts.
const BESIDE: usize = 1 << 10;

/// Memory budget of reports that are queued or being written.
#[derive(Clone, Debug)]
pub(super) struct Waiting(Arc<Semaphore>);

// === impl Waiting ===

impl Default for Waiting {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(UNITS)))
    }
}

impl Waiting {
    /// Acquires budget for these reports. The permit releases it when they are stored and dropped.
    pub(super) fn room_for(&self, arrivals: &[Arrival]) -> Result<OwnedSemaphorePermit, StoreError> {
        let bytes: usize =
            arrivals.iter().map(|arrival| arrival.report.len() + arrival.words.len() + BESIDE).sum();
        let units = u32::try_from(bytes.div_ceil(UNIT)).map_err(|_| StoreError::Busy)?;
        Arc::clone(&self.0).try_acquire_many_owned(units).map_err(|_| StoreError::Busy)
    }
}
