//! The machine that a run works on, behind one trait: the real machine, or a simulated one that can lose power.
//!
//! [`Environment`] is what both kinds of work need. `PrepareEnvironment` and `InPlaceEnvironment` add the operations
//! of their own steps, so that a simulated machine implements only what its steps call. [`HostEnvironment`]
//! implements all three.

mod host;
pub(crate) mod systemd;
pub(crate) mod tree;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use landfall_durable::{self as durable, Access, Disk};
use landfall_steps::{BootId, BootIdError};

pub(crate) use host::blocking;
pub use host::{HostEnvironment, HostEnvironmentError};

/// Directories of programs and settings, which other users may read.
pub(crate) const PUBLIC_DIR: Access = Access { mode: 0o755, owner: None };

/// The reason why the cluster did not answer, for messages.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct ClusterUnavailable {
    pub reason: String,
}

/// The machine. Paths are those of the node; an environment with another root puts it before them.
pub trait Environment: Send + Sync + 'static {
    fn disk(&self) -> Arc<dyn Disk>;

    /// The path of this process for a path of the node.
    fn host_path(&self, path: &Path) -> PathBuf;

    /// As [`Self::host_path`], with the links of the node resolved below the node's root.
    fn resolve(&self, path: &Path) -> PathBuf {
        self.host_path(path)
    }

    fn boot(&self) -> Result<BootId, BootIdError>;

    fn now(&self) -> Timestamp;

    /// Whether there is anything under this name, even a link that leads nowhere.
    fn exists(&self, path: &Path) -> io::Result<bool>;

    /// Replaces a file or a link by a link, durably and in one operation.
    fn set_link(&self, path: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file, or a directory with everything in it, durably. Links are not followed; a missing path is success.
    fn remove_all(&self, path: &Path) -> io::Result<()>;

    /// Makes systemd read its unit files again. A root without a running systemd has nothing to reload.
    fn reload_units(&self) -> impl Future<Output = Result<(), String>> + Send;
}

/// Makes a directory of the node and its missing parents.
pub(crate) fn make_dir(env: &impl Environment, path: &Path, access: Access) -> Result<(), durable::Error> {
    let (disk, path) = (env.disk(), env.host_path(path));
    let missing: Vec<&Path> = path.ancestors().take_while(|dir| disk.names(dir).is_err()).collect();
    missing.iter().rev().try_for_each(|dir| durable::create_dir(&*disk, dir, access))
}

/// Writes a file of the node and makes its missing parents.
pub(crate) fn write(
    env: &impl Environment,
    path: &Path,
    bytes: &[u8],
    access: Access,
) -> Result<(), durable::Error> {
    let is_private = access.mode.trailing_zeros() >= 6;
    let dir = if is_private { Access::PRIVATE_DIR } else { PUBLIC_DIR };
    make_dir(env, path.parent().unwrap_or(Path::new("/")), dir)?;
    durable::write(&*env.disk(), &env.host_path(path), bytes, access)
}

/// Reads a file of the node; `None` when it does not exist.
pub(crate) fn read(env: &impl Environment, path: &Path, limit: u64) -> io::Result<Option<Vec<u8>>> {
    match env.disk().read(&env.resolve(path), limit) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if is_missing(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// As [`read`], for text.
pub(crate) fn read_text(env: &impl Environment, path: &Path, limit: u64) -> io::Result<Option<String>> {
    let text = read(env, path, limit)?.map(String::from_utf8).transpose();
    text.map_err(|_| io::ErrorKind::InvalidData.into())
}

pub(crate) fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}
