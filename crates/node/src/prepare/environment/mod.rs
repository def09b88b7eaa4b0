//! The operations on a machine that only preparing a node needs.

mod host;

use std::io;
use std::path::{Path, PathBuf};

use landfall_fetch::{FetchError, Order, Source};

use super::decision::ServerAnswer;
use super::digest::Digest;
use super::request::FleetLock;
use super::sysext::image::ImageError;
use super::sysext::release::ExtensionRelease;
use super::update_engine::{Pending, Status, UpdateError};
use crate::environment::{ClusterUnavailable, Environment};

/// The two requests of the FleetLock protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FleetLockRequest {
    /// Requests permission to reboot.
    PreReboot,
    /// Reports that the reboot succeeded.
    SteadyState,
}

/// The answer of the lock server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FleetLockResponse {
    Granted,
    /// Refused for now, with a reason.
    Refused {
        reason: String,
    },
}

/// Progress callback of a download: bytes so far, total bytes.
pub type Progress<'a> = &'a (dyn Fn(u64, Option<u64>) + Sync);

/// A machine that can be prepared.
pub trait PrepareEnvironment: Environment {
    fn api_servers(
        &self,
        kubeconfig: &Path,
    ) -> impl Future<Output = Result<Vec<ServerAnswer>, ClusterUnavailable>> + Send;

    fn config_map(
        &self,
        kubeconfig: &Path,
        namespace: &str,
        name: &str,
        key: &str,
    ) -> impl Future<Output = Result<String, ClusterUnavailable>> + Send;

    /// Returns a document, and the location that served it.
    fn document(
        &self,
        urls: &[String],
        limit: u64,
    ) -> impl Future<Output = Result<(Vec<u8>, Source), FetchError>> + Send;

    fn fetch(
        &self,
        order: &Order,
        progress: Progress<'_>,
    ) -> impl Future<Output = Result<Source, FetchError>> + Send;

    /// Returns whether a file of the node has this content.
    fn is_file(&self, path: &Path, digest: &Digest) -> impl Future<Output = io::Result<bool>> + Send;

    fn update_status(&self) -> impl Future<Output = Result<Status, UpdateError>> + Send;

    /// Requests an update of the operating system and waits for its outcome.
    fn update(&self, progress: Progress<'_>) -> impl Future<Output = Result<Pending, UpdateError>> + Send;

    fn extension(
        &self,
        path: &Path,
        name: &str,
    ) -> impl Future<Output = Result<ExtensionRelease, ImageError>> + Send;

    /// Returns the target of a link of the node, if there is one.
    fn link(&self, path: &Path) -> io::Result<Option<PathBuf>>;

    /// Returns whether this is the running system, and not the root of another one.
    fn is_live_system(&self) -> bool;

    /// Merges the linked extensions into the running system.
    fn merge(&self) -> impl Future<Output = Result<(), String>> + Send;

    /// Returns the extensions that are part of the system.
    fn merged(&self) -> impl Future<Output = Result<Vec<String>, String>> + Send;

    /// Acquires or releases the permission to reboot.
    fn fleet_lock(
        &self,
        lock: &FleetLock,
        ask: FleetLockRequest,
    ) -> impl Future<Output = Result<FleetLockResponse, FetchError>> + Send;
}
