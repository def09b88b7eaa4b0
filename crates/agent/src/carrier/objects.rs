//! An object store: each report is an object, named by the node and the report's id, so that bringing it twice is once.

use std::path::PathBuf;
use std::sync::OnceLock;

use landfall_model::envelope::{Envelope, ReportId};
use landfall_objects::{Bucket, Location, ObjectsError, Source};
use tokio::runtime::Runtime;

use super::{Carrier, CarryError, NetworkError, node_name, runtime};

/// A bucket, and the runtime to speak to it.
#[expect(missing_debug_implementations, reason = "leads to credentials")]
pub struct ObjectStore {
    location: Location,
    credentials: PathBuf,
    authority: Option<PathBuf>,
    /// Opened when it is first needed: its files may come in the middle of a boot.
    bucket: OnceLock<Bucket>,
    runtime: Runtime,
}

// === impl ObjectStore ===

impl ObjectStore {
    /// `credentials` is a file as Amazon's tools have it, or with what Azure's portal shows; `authority` tells whom to trust
    /// instead of the public ones.
    pub fn new(
        location: Location,
        credentials: PathBuf,
        authority: Option<PathBuf>,
    ) -> Result<Self, NetworkError> {
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

/// Where a report lies in a bucket: `reports/NODE/ID.json`. Ids made later sort later.
pub(super) fn key(id: ReportId, envelope: &[u8]) -> Result<String, CarryError> {
    let envelope: Envelope =
        serde_json::from_slice(envelope).map_err(|error| CarryError::Never(Box::new(error)))?;
    Ok(format!("reports/{}/{id}.json", node_name(&envelope)))
}

pub(super) fn judged(error: ObjectsError) -> CarryError {
    if error.is_lasting() { CarryError::Never(Box::new(error)) } else { CarryError::Later(Box::new(error)) }
}
