//! How much may wait for the disk. Reports of a few kilobytes and batches of many megabytes wait in the same queue, so that
//! their number says nothing about memory.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{Arrival, StoreError};

/// Bytes that wait and are being written, in units of this many: 128 MiB, which is a few seconds of what one machine writes.
/// Who comes beyond is told to try again, which costs less than letting everybody wait.
const UNIT: usize = 1 << 10;
const UNITS: usize = 128 << 10;
/// What a report takes beside its texts.
const BESIDE: usize = 1 << 10;

/// Room for reports on their way to the disk.
#[derive(Clone, Debug)]
pub(super) struct Waiting(Arc<Semaphore>);

// === impl Waiting ===

impl Default for Waiting {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(UNITS)))
    }
}

impl Waiting {
    /// Room for these; it is given back with the permit, when they are stored and gone.
    pub(super) fn room_for(&self, arrivals: &[Arrival]) -> Result<OwnedSemaphorePermit, StoreError> {
        let bytes: usize =
            arrivals.iter().map(|arrival| arrival.report.len() + arrival.words.len() + BESIDE).sum();
        let units = u32::try_from(bytes.div_ceil(UNIT)).map_err(|_| StoreError::Busy)?;
        Arc::clone(&self.0).try_acquire_many_owned(units).map_err(|_| StoreError::Busy)
    }
}
