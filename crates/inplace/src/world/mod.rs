//! Everything outside this program that an in-place bootstrap touches, behind one trait: the real machine, or one in
//! memory whose power can be cut.

mod cluster;
mod command;
mod host;
mod systemd;
mod tree;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use landfall_cluster::NodeFacts;
use landfall_fetch::{Answer, Exchange, FetchError, Saved};
use landfall_steps::durable::{self, Access, Disk};
use landfall_steps::{BootId, BootIdError};

pub use host::{ClusterAccess, HostWorld, HostWorldError};

/// Folders of programs and settings, which others may look into.
pub(crate) const PUBLIC_DIR: Access = Access { mode: 0o755, owner: None };

/// Who vouches for the other side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// These authorities (PEM) and nobody else.
    Only(String),
    /// The authorities of the machine.
    Machine,
    /// The `ca.crt` in a folder of the node, else the authorities of the machine.
    Registry { folder: PathBuf },
}

/// A program to run on the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    pub program: PathBuf,
    pub arguments: Vec<String>,
    pub folder: PathBuf,
    /// Nothing secret: everybody on the machine may read it.
    pub environment: Vec<(&'static str, String)>,
    /// Where what it says is kept, redacted.
    pub log: PathBuf,
    pub limit: Duration,
}

/// How a program ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Nothing: a signal ended it.
    pub code: Option<i32>,
    /// The last lines of what it said, redacted.
    pub tail: String,
}

/// Why the cluster gave no answer, for people.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct NoAnswer {
    pub reason: String,
}

/// What keeps a folder where it is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Tied {
    #[error("is a file system of its own")]
    Mount,
    #[error("is a link to `{to}`")]
    Link { to: String },
}

/// The surroundings. Paths are those of the node; a world with another root puts it before them.
pub trait World: Send + Sync + 'static {
    fn disk(&self) -> Arc<dyn Disk>;

    /// Where a path of the node is for this process.
    fn place(&self, path: &Path) -> PathBuf;

    /// Where that is for this process what a path of the node leads to: its links count from the node's root.
    fn seen(&self, path: &Path) -> PathBuf {
        self.place(path)
    }

    fn boot(&self) -> Result<BootId, BootIdError>;

    fn now(&self) -> Timestamp;

    /// Time since the boot.
    fn uptime(&self) -> Duration;

    fn exchange(
        &self,
        trust: &Trust,
        question: &Exchange,
    ) -> impl Future<Output = Result<Answer, FetchError>> + Send;

    /// As an exchange, with a successful answer's body in a file (a place of this process).
    fn download(
        &self,
        trust: &Trust,
        question: &Exchange,
        file: &Path,
    ) -> impl Future<Output = Result<Saved, FetchError>> + Send;

    /// A file of the node that is too large for memory.
    fn open(&self, path: &Path) -> io::Result<Box<dyn io::Read + Send>>;

    fn free_bytes(&self, path: &Path) -> io::Result<u64>;

    /// Whether there is anything under this name.
    fn exists(&self, path: &Path) -> io::Result<bool>;

    /// Why a folder that is there cannot be moved aside with everything in it; nothing when it can.
    fn tied(&self, path: &Path) -> io::Result<Option<Tied>>;

    /// Moves a file or a whole folder to another name beside it, durably. What is not there is left alone. Cut off, it may
    /// leave some of the old name beside the whole new one.
    fn set_aside(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file, or a folder with everything in it. What is not there is gone.
    fn remove_all(&self, path: &Path) -> io::Result<()>;

    fn set_link(&self, path: &Path, to: &Path) -> io::Result<()>;

    /// Unpacks a payload into a folder that does not exist yet; it appears whole or not at all.
    fn unpack(&self, payload: &Path, folder: &Path) -> impl Future<Output = Result<(), String>> + Send;

    /// This very program.
    fn program(&self) -> io::Result<Vec<u8>>;

    fn reload_units(&self) -> impl Future<Output = Result<(), String>> + Send;

    /// `active`, `inactive`, `failed` and so on.
    fn unit_state(&self, unit: &str) -> impl Future<Output = Result<String, String>> + Send;

    /// Starts a unit, without waiting for it.
    fn start_unit(&self, unit: &str) -> impl Future<Output = Result<(), String>> + Send;

    fn run(&self, command: &Command) -> impl Future<Output = Result<Ended, String>> + Send;

    /// What the cluster knows of the node; nothing when it has no such node.
    fn node(&self, name: &str) -> impl Future<Output = Result<Option<NodeFacts>, NoAnswer>> + Send;

    /// What would hold up emptying the node: pods, each with the reason. Nothing is asked to go.
    fn in_the_way(&self, node: &str) -> impl Future<Output = Result<Vec<String>, NoAnswer>> + Send;

    fn remove_label(&self, node: &str, label: &str) -> impl Future<Output = Result<(), NoAnswer>> + Send;

    fn annotate(
        &self,
        node: &str,
        key: &str,
        value: &str,
    ) -> impl Future<Output = Result<(), NoAnswer>> + Send;
}

/// Makes a folder of the node and those it is in.
pub(crate) fn make_dir(world: &impl World, path: &Path, access: Access) -> Result<(), durable::Error> {
    let (disk, place) = (world.disk(), world.place(path));
    let missing: Vec<&Path> = place.ancestors().take_while(|dir| disk.names(dir).is_err()).collect();
    missing.iter().rev().try_for_each(|dir| durable::create_dir(&*disk, dir, access))
}

/// Writes a file of the node and the folders it is in.
pub(crate) fn write(
    world: &impl World,
    path: &Path,
    bytes: &[u8],
    access: Access,
) -> Result<(), durable::Error> {
    let is_private = access.mode.trailing_zeros() >= 6;
    let folder = if is_private { Access::PRIVATE_DIR } else { PUBLIC_DIR };
    make_dir(world, path.parent().unwrap_or(Path::new("/")), folder)?;
    durable::write(&*world.disk(), &world.place(path), bytes, access)
}

/// A file of the node; nothing when it is not there.
pub(crate) fn read(world: &impl World, path: &Path, limit: u64) -> io::Result<Option<Vec<u8>>> {
    match world.disk().read(&world.seen(path), limit) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}
