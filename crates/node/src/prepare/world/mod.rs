//! Everything outside this program that preparing a node touches, behind one trait: the real machine, or one in memory
//! whose power can be cut.

mod host;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use landfall_fetch::{FetchError, Order, Source};
use landfall_steps::BootId;
use landfall_steps::durable::{self, Access, Disk};

pub use host::{HostWorld, HostWorldError};

use super::decision::ServerAnswer;
use super::digest::Digest;
use super::request::FleetLock;
use super::sysext::image::ImageError;
use super::sysext::release::ExtensionRelease;
use super::update_engine::{Pending, Status, UpdateError};

/// Why the cluster gave no answer, for people; and whether it was asked at all.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct NoAnswer {
    pub reason: String,
}

/// How often a question to the cluster is repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ApiPatience {
    pub tries: u32,
    pub pause: Duration,
}

/// The two questions of the FleetLock protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockAsk {
    /// May this machine reboot?
    PreReboot,
    /// It did, and is well.
    SteadyState,
}

/// What the lock server says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LockAnswer {
    Granted,
    /// Not now, and why.
    Refused {
        reason: String,
    },
}

/// Progress of a download: bytes so far, bytes in all.
pub type Progress<'a> = &'a (dyn Fn(u64, Option<u64>) + Sync);

/// The surroundings of a run. Paths are those of the node; a world with another root puts it before them.
pub trait World: Send + Sync + 'static {
    fn disk(&self) -> Arc<dyn Disk>;

    /// Where a path of the node is for this process.
    fn place(&self, path: &Path) -> std::path::PathBuf;

    fn boot(&self) -> Result<BootId, landfall_steps::BootIdError>;

    /// Seconds since 1970.
    fn now(&self) -> u64;

    fn api_servers(
        &self,
        kubeconfig: &Path,
    ) -> impl Future<Output = Result<Vec<ServerAnswer>, NoAnswer>> + Send;

    /// One key of a ConfigMap.
    fn config_map(
        &self,
        kubeconfig: &Path,
        namespace: &str,
        name: &str,
        key: &str,
    ) -> impl Future<Output = Result<String, NoAnswer>> + Send;

    /// A document, and which of the places gave it.
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

    /// Whether a file of the node has this content.
    fn is_file(&self, path: &Path, digest: &Digest) -> impl Future<Output = io::Result<bool>> + Send;

    fn update_status(&self) -> impl Future<Output = Result<Status, UpdateError>> + Send;

    /// Asks for an update of the operating system and waits for what becomes of it.
    fn update(&self, progress: Progress<'_>) -> impl Future<Output = Result<Pending, UpdateError>> + Send;

    /// Opens an extension image.
    fn extension(
        &self,
        path: &Path,
        name: &str,
    ) -> impl Future<Output = Result<ExtensionRelease, ImageError>> + Send;

    /// Where a link of the node points, if there is one.
    fn link(&self, path: &Path) -> io::Result<Option<std::path::PathBuf>>;

    /// Puts a link in place, durably and at once.
    fn set_link(&self, path: &Path, to: &Path) -> io::Result<()>;

    /// Whether this is the system that runs here, and not the root of another.
    fn is_here(&self) -> bool;

    /// Makes the linked extensions part of the running system.
    fn merge(&self) -> impl Future<Output = Result<(), String>> + Send;

    /// The extensions that are part of the system.
    fn merged(&self) -> impl Future<Output = Result<Vec<String>, String>> + Send;

    /// Lets systemd see unit files that changed.
    fn reload_units(&self) -> impl Future<Output = Result<(), String>> + Send;

    /// Removes a folder with everything in it; links in it are not followed.
    fn remove_folder(&self, path: &Path) -> io::Result<()>;

    /// Asks for the right to reboot, or gives it back.
    fn fleet_lock(
        &self,
        lock: &FleetLock,
        ask: LockAsk,
    ) -> impl Future<Output = Result<LockAnswer, FetchError>> + Send;
}

/// Makes a folder of the node and those it is in.
pub(crate) fn make_dir(world: &impl World, path: &Path, access: Access) -> Result<(), durable::Error> {
    let (disk, place) = (world.disk(), world.place(path));
    let missing: Vec<&Path> = place.ancestors().take_while(|dir| disk.names(dir).is_err()).collect();
    missing.iter().rev().try_for_each(|dir| durable::create_dir(&*disk, dir, access))
}

/// A file of the node as text; nothing when it is not there.
pub(crate) fn read(world: &impl World, path: &Path, limit: u64) -> io::Result<Option<String>> {
    match world.disk().read(&world.place(path), limit) {
        Ok(bytes) => String::from_utf8(bytes).map(Some).map_err(|_| io::ErrorKind::InvalidData.into()),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}
