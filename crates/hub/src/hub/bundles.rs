//! Upload and download of bundles.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use futures_util::Stream;
use jiff::Timestamp;
use landfall_net::serve::{BoxError, Permit};

use super::Hub;
use crate::access::{Caller, Wish};
use crate::bundles::{self, BundleError, Effort, LogFile, LogPage, LogQuery};
use crate::limits::permit;
use crate::machine::{self, Machine};
use crate::name::NodeName;
use crate::objects::Opened;
use crate::problem::Problem;
use crate::store::BundleRecord;

/// Timeout of an upload: 512 MiB at 1.2 Mbit/s.
pub(super) const UPLOAD_PATIENCE: Duration = Duration::from_secs(3600);

// === impl Hub ===

impl Hub {
    /// Receives a bundle as a stream. `by` is the credential: the caller's own, or a shared one if the node was
    /// [proven](Hub::sender_of_bundle).
    pub(crate) async fn take_bundle<E: Into<BoxError>>(
        &self,
        caller: &Caller,
        by: &Caller,
        node: NodeName,
        announced: Option<&str>,
        stream: impl Stream<Item = Result<Bytes, E>> + Unpin,
    ) -> Result<BundleRecord, Problem> {
        caller.may(Wish::Report(&node))?;
        let slots = (self.uploads.try_acquire(Some(by)), self.node_uploads.try_acquire(Some(&node)));
        let (Some(_slot), Some(_node_slot)) = slots else {
            return Err(Problem::new(503, "Try again later", "too many bundles are being sent"));
        };
        let receiving = bundles::receive(&self.objects, announced, self.limits, self.left_free, stream);
        let received = tokio::time::timeout(UPLOAD_PATIENCE, receiving).await;
        let received = received.map_err(|_| Problem::new(408, "Too slow", "the bundle took too long"))?;
        self.tell_of_room(&received);
        let received = received?;
        let name = node.clone();
        let (draft, taken) = self.unpacked(by, move || bundles::verified(&name, received)).await?;
        let record = BundleRecord {
            digest: taken.digest,
            node: node.to_string(),
            received: Timestamp::now(),
            bytes: taken.bytes,
            files: taken.files,
            cut: taken.cut,
        };
        let (objects, store, known) = (self.objects.clone(), Arc::clone(&self.store), record.clone());
        // Spawned so that it completes even if the client disconnects, and leaves no partial state to clean up.
        let kept = tokio::spawn(async move {
            let again = || Problem::new(503, "Try again later", "the same bundle is being removed");
            if !store.expect_bundle(known.digest.clone(), Timestamp::now()).await? {
                return Err(again());
            }
            objects.keep(draft, &known.digest).await.map_err(BundleError::Objects)?;
            if store.add_bundle(known).await? { Ok(()) } else { Err(again()) }
        });
        kept.await.map_err(|_| BundleError::Stopped)??;
        self.counters.count_bundle();
        Ok(record)
    }

    /// Logs once when bundles are rejected for lack of space, and once when they are accepted again.
    fn tell_of_room<T>(&self, received: &Result<T, BundleError>) {
        match received {
            Err(BundleError::NoRoom) if !self.is_crowded.swap(true, Ordering::Relaxed) => {
                tracing::warn!("The disk has too little room left: bundles are refused, reports are not.");
            }
            Ok(_) if self.is_crowded.swap(false, Ordering::Relaxed) => {
                tracing::info!("The disk has room for bundles again.");
            }
            _ => {}
        }
    }

    pub(crate) async fn bundle(&self, caller: &Caller, digest: &str) -> Result<BundleRecord, Problem> {
        caller.may(Wish::See)?;
        let bundle = self.store.bundle(digest.to_owned()).await?;
        bundle.ok_or_else(|| Problem::not_found("this bundle"))
    }

    /// Opens the compressed bundle.
    pub(crate) async fn open_bundle(
        &self,
        caller: &Caller,
        digest: &str,
    ) -> Result<(BundleRecord, Opened), Problem> {
        let record = self.bundle(caller, digest).await?;
        let opened = self.objects.read(&record.digest, record.bytes).await.map_err(BundleError::Objects)?;
        Ok((record, opened))
    }

    pub(crate) async fn log_files(&self, caller: &Caller, digest: &str) -> Result<Vec<LogFile>, Problem> {
        self.read_bundle(caller, digest, bundles::files).await
    }

    /// Returns units and probes of a bundle, or `None` if the bundle is too large to be read during a request.
    pub(crate) async fn machine(
        &self,
        caller: &Caller,
        bundle: &BundleRecord,
    ) -> Result<Option<Arc<Machine>>, Problem> {
        caller.may(Wish::See)?;
        if let Some(machine) = self.machines.get(&bundle.digest) {
            return Ok(Some(machine));
        }
        if bundle.bytes > machine::MAX_PACKED {
            return Ok(None);
        }
        let machine = Arc::new(self.read_bundle(caller, &bundle.digest, machine::read).await?);
        self.machines.add(bundle.digest.clone(), &machine);
        Ok(Some(machine))
    }

    pub(crate) async fn log_lines(
        &self,
        caller: &Caller,
        digest: &str,
        query: LogQuery,
    ) -> Result<LogPage, Problem> {
        self.read_bundle(caller, digest, move |packed| bundles::lines(packed, &query, &Effort::default()))
            .await
    }

    /// Reads a bundle under a permit. Bucket objects are fetched only for requests that can be processed now.
    pub(crate) async fn read_bundle<T: Send + 'static>(
        &self,
        caller: &Caller,
        digest: &str,
        work: impl FnOnce(Opened) -> Result<T, BundleError> + Send + 'static,
    ) -> Result<T, Problem> {
        self.bundle(caller, digest).await?;
        let permit = self.unpack_permit(caller).await?;
        let (_, opened) = self.open_bundle(caller, digest).await?;
        unpack(permit, move || work(opened)).await
    }

    pub(crate) async fn unpacked<T: Send + 'static>(
        &self,
        caller: &Caller,
        work: impl FnOnce() -> Result<T, BundleError> + Send + 'static,
    ) -> Result<T, Problem> {
        let permit = self.unpack_permit(caller).await?;
        unpack(permit, work).await
    }

    async fn unpack_permit(&self, caller: &Caller) -> Result<Permit, Problem> {
        permit(&self.unpacking, caller, "too many bundles are being unpacked").await
    }
}

async fn unpack<T: Send + 'static>(
    permit: Permit,
    work: impl FnOnce() -> Result<T, BundleError> + Send + 'static,
) -> Result<T, Problem> {
    let (done, _permit) = permit.run_blocking(work).await.map_err(|_| BundleError::Stopped)?;
    Ok(done?)
}
