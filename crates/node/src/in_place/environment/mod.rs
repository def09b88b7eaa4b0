//! The operations on a machine that only an in-place bootstrap needs.

mod cluster;
mod command;
mod host;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use landfall_cluster::NodeFacts;
use landfall_fetch::{Answer, Exchange, FetchError, Saved};

use crate::environment::{ClusterUnavailable, Environment};

pub use cluster::ClusterAccess;

/// The CAs that authenticate a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TrustRoots {
    /// Only these CAs (PEM).
    Only(String),
    /// The CAs of the machine.
    System,
    /// The `ca.crt` in a directory of the node, otherwise the CAs of the machine.
    Registry { folder: PathBuf },
}

/// A program to run on the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    pub program: PathBuf,
    pub arguments: Vec<String>,
    pub folder: PathBuf,
    /// Must contain no secret: every user of the machine can read it.
    pub environment: Vec<(&'static str, String)>,
    /// File for the redacted output.
    pub log: PathBuf,
    pub limit: Duration,
}

/// Result of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandResult {
    /// Exit code; `None` when a signal ended the program.
    pub code: Option<i32>,
    /// The last lines of the redacted output.
    pub tail: String,
}

/// The reason why a directory cannot be moved.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PinnedBy {
    #[error("is a file system of its own")]
    Mount,
    #[error("is a link to `{to}`")]
    Symlink { to: String },
}

/// A machine that can be bootstrapped in place.
pub trait InPlaceEnvironment: Environment {
    /// Time since the boot.
    fn uptime(&self) -> Duration;

    fn exchange(
        &self,
        trust: &TrustRoots,
        question: &Exchange,
    ) -> impl Future<Output = Result<Answer, FetchError>> + Send;

    /// Like `exchange`, but writes the body of a successful answer to a file (a path of this process).
    fn download(
        &self,
        trust: &TrustRoots,
        question: &Exchange,
        file: &Path,
    ) -> impl Future<Output = Result<Saved, FetchError>> + Send;

    /// Opens a file of the node that is too large for memory.
    fn open(&self, path: &Path) -> io::Result<Box<dyn io::Read + Send>>;

    fn free_bytes(&self, path: &Path) -> io::Result<u64>;

    /// Returns why an existing directory cannot be moved with its content; `None` when it can.
    fn pinned_by(&self, path: &Path) -> io::Result<Option<PinnedBy>>;

    /// Moves a file or a complete directory durably to another name beside it. A missing source is ignored.
    ///
    /// An interrupted move may leave parts of the old name beside the complete new one.
    fn stash(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Unpacks a payload into a directory that does not exist yet. The directory appears complete or not at all.
    fn unpack(&self, payload: &Path, folder: &Path) -> impl Future<Output = Result<(), String>> + Send;

    /// Returns the content of the running binary.
    fn program(&self) -> io::Result<Vec<u8>>;

    /// Returns `active`, `inactive`, `failed` or another state of systemd.
    fn unit_state(&self, unit: &str) -> impl Future<Output = Result<String, String>> + Send;

    /// Starts a unit, without waiting for it.
    fn start_unit(&self, unit: &str) -> impl Future<Output = Result<(), String>> + Send;

    fn run(&self, command: &Command) -> impl Future<Output = Result<CommandResult, String>> + Send;

    /// Returns the facts that the cluster has about the node; `None` when it has no such node.
    fn node(&self, name: &str) -> impl Future<Output = Result<Option<NodeFacts>, ClusterUnavailable>> + Send;

    /// Returns the pods that would block draining the node, each with the reason. No pod is evicted.
    fn drain_blockers(
        &self,
        node: &str,
    ) -> impl Future<Output = Result<Vec<String>, ClusterUnavailable>> + Send;

    fn remove_label(
        &self,
        node: &str,
        label: &str,
    ) -> impl Future<Output = Result<(), ClusterUnavailable>> + Send;

    fn annotate(
        &self,
        node: &str,
        key: &str,
        value: &str,
    ) -> impl Future<Output = Result<(), ClusterUnavailable>> + Send;
}
