//! An object store: each report is an object, named by the node and the report's id, so that bringing it twice is once.

use std::path::{Path, PathBuf};

use landfall_model::envelope::{Envelope, ReportId};
use landfall_objects::{Bucket, Location, ObjectsError, Source};
use tokio::runtime::Runtime;

use super::{Carrier, CarryError, NetworkError, node_name, runtime};

/// A bucket, and the runtime to speak to it.
#[expect(missing_debug_implementations, reason = "leads to credentials")]
pub struct ObjectStore {
    bucket: Bucket,
    runtime: Runtime,
}

#[derive(Debug, thiserror::Error)]
pub enum ObjectStoreError {
    #[error("cannot use the object store")]
    Bucket(#[source] ObjectsError),
    #[error("cannot prepare the network")]
    Network(#[source] NetworkError),
}

// === impl ObjectStore ===

impl ObjectStore {
    /// `credentials` is a file as Amazon's tools have it, or with what Azure's portal shows; `authority` tells whom to trust
    /// instead of the public ones.
    pub fn new(
        location: Location,
        credentials: PathBuf,
        authority: Option<&Path>,
    ) -> Result<Self, ObjectStoreError> {
        let bucket = Bucket::open(location, credentials, authority).map_err(ObjectStoreError::Bucket)?;
        Ok(Self { bucket, runtime: runtime().map_err(ObjectStoreError::Network)? })
    }

    pub(super) fn bucket(&self) -> &Bucket {
        &self.bucket
    }
}

impl Carrier for ObjectStore {
    fn name(&self) -> &'static str {
        "objects"
    }

    fn carry(&mut self, id: ReportId, envelope: &[u8]) -> Result<(), CarryError> {
        let key = key(id, envelope)?;
        let stored = self.bucket.put(&key, "application/json", Source::Bytes(envelope));
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
