//! A carrier to an object store.
//!
//! Each report is an object named by the node and the report's ID, so that a redelivery overwrites it.

use std::path::PathBuf;
use std::sync::OnceLock;

use landfall_fetch::objects::{Bucket, Credentials, Location, ObjectsError, Source};
use landfall_model::envelope::ReportId;
use tokio::runtime::Runtime;

use super::{Carrier, CarryError, NetworkError, message, node_name, runtime};

/// A carrier to a bucket, with its runtime.
#[expect(missing_debug_implementations, reason = "leads to credentials")]
pub struct ObjectStore {
    location: Location,
    credentials: Credentials,
    authority: Option<PathBuf>,
    /// Opened at first use: its files may be written during the boot.
    bucket: OnceLock<Bucket>,
    runtime: Runtime,
}

// === impl ObjectStore ===

impl ObjectStore {
    /// Creates a carrier. `credentials` is a file or the credentials that the cloud issues to the machine.
    /// The file has the format of Amazon's tools, or the text from Azure's portal. `authority` is a CA file
    /// that replaces the public CAs.
    pub fn new(
        location: Location,
        credentials: impl Into<Credentials>,
        authority: Option<PathBuf>,
    ) -> Result<Self, NetworkError> {
        let credentials = credentials.into();
        Ok(Self { location, credentials, authority, bucket: OnceLock::new(), runtime: runtime()? })
    }

    pub(super) fn bucket(&self) -> Result<&Bucket, CarryError> {
        if let Some(bucket) = self.bucket.get() {
            return Ok(bucket);
        }
        let (location, credentials) = (self.location.clone(), self.credentials.clone());
        let bucket = Bucket::open(location, credentials, self.authority.as_deref());
        let bucket = bucket.map_err(|error| CarryError::Later(Box::new(error)))?;
        Ok(self.bucket.get_or_init(|| bucket))
    }
}

impl Carrier for ObjectStore {
    fn name(&self) -> &'static str {
        "objects"
    }

    fn carry(&mut self, id: ReportId, envelope: &[u8]) -> Result<(), CarryError> {
        let key = key(id, envelope)?;
        let stored = self.bucket()?.put(&key, "application/json", Source::Bytes(envelope));
        self.runtime.block_on(stored).map_err(judged)
    }
}

/// Returns a report's key in a bucket: `reports/NODE/ID.json`. Keys of one node sort by creation.
pub(super) fn key(id: ReportId, envelope: &[u8]) -> Result<String, CarryError> {
    Ok(format!("reports/{}/{id}.json", node_name(&message(envelope)?)))
}

pub(super) fn judged(error: ObjectsError) -> CarryError {
    if error.is_lasting() { CarryError::Never(Box::new(error)) } else { CarryError::Later(Box::new(error)) }
}
