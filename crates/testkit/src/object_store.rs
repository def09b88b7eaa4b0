//! Real object stores over TLS that verify signatures: one for S3, one for Azure Blob.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use anyhow::{Context, Result};
use landfall_pki::{Authority, Leaf, Purpose};
use tempfile::TempDir;

use crate::{Need, Process, azurite, free_port, versitygw};

const START_LIMIT: Duration = Duration::from_mins(1);

/// The implementation of the object store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectServer {
    /// S3: Versity's gateway for a directory.
    Versitygw,
    /// Azure Blob: Microsoft's emulator.
    Azurite,
}

/// An object store that runs until dropped, with one empty bucket.
#[derive(Debug)]
pub struct ObjectStore {
    server: ObjectServer,
    port: u16,
    directory: TempDir,
    _process: Process,
    /// Dropped with the value, which ends the thread that started it.
    _alive: Option<Sender<()>>,
}

// === impl ObjectServer ===

impl ObjectServer {
    pub const ALL: [Self; 2] = [Self::Versitygw, Self::Azurite];

    pub fn needs(self) -> &'static [Need] {
        match self {
            Self::Versitygw => versitygw::NEEDS,
            Self::Azurite => azurite::NEEDS,
        }
    }

    pub fn start(self) -> Result<ObjectStore> {
        self.start_with(&[])
    }

    /// Starts Azurite with Entra tokens: it validates them except for the signature.
    pub fn start_for_tokens() -> Result<ObjectStore> {
        Self::Azurite.start_with(&["--oauth", "basic"])
    }

    fn start_with(self, more: &[&str]) -> Result<ObjectStore> {
        let directory = tempfile::tempdir().context("make a folder for an object store")?;
        let path = |name: &str| directory.path().join(name);
        let authority = Authority::new("object store authority", 7)?;
        let names = [Ipv4Addr::LOCALHOST.to_string()];
        let pair = authority.issue(&Leaf::new("object store", Purpose::Serve).names(names))?;
        std::fs::write(path("tls.crt"), &pair.certificate)?;
        std::fs::write(path("tls.key"), pair.key.expose())?;
        std::fs::write(path("ca.crt"), authority.certificate())?;
        let (good, wrong) = match self {
            Self::Versitygw => versitygw::credentials(),
            Self::Azurite => azurite::credentials(),
        };
        for (folder, texts) in [("credentials", good), ("wrong-credentials", wrong)] {
            std::fs::create_dir(path(folder))?;
            for (number, text) in texts.iter().enumerate() {
                std::fs::write(path(folder).join(number.to_string()), text)?;
            }
        }
        let port = free_port()?;
        let mut process = match self {
            Self::Versitygw => versitygw::start(directory.path(), port),
            Self::Azurite => azurite::start(directory.path(), port, more),
        }?;
        process.wait_until("the object store to answer", START_LIMIT, || {
            TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok()
        })?;
        if self == Self::Azurite {
            azurite::make_bucket(directory.path(), port)?;
        }
        Ok(ObjectStore { server: self, port, directory, _process: process, _alive: None })
    }
}

// === impl ObjectStore ===

impl ObjectStore {
    pub const BUCKET: &'static str = "fleet";

    /// Returns the S3 store shared by all running tests of a process; each uses its own directory.
    pub fn shared() -> Result<Arc<Self>> {
        static SHARED: Mutex<Weak<ObjectStore>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(running) = shared.upgrade() {
            return Ok(running);
        }
        // The server ends with the thread that started it, so a dedicated thread lives as long as the value.
        let (started, outcome) = mpsc::channel();
        std::thread::spawn(move || {
            let (alive, ended) = mpsc::channel();
            let store = ObjectServer::Versitygw.start();
            let store = store.map(|store| Arc::new(Self { _alive: Some(alive), ..store }));
            // The send fails only if the test has already ended.
            let _ = started.send(store);
            let _ = ended.recv();
        });
        let started = outcome.recv().context("wait for an object store")??;
        *shared = Arc::downgrade(&started);
        Ok(started)
    }

    /// Returns the URL of a directory in the bucket.
    pub fn location(&self, prefix: &str) -> String {
        let (bucket, port) = (Self::BUCKET, self.port);
        match self.server {
            ObjectServer::Versitygw => format!("s3://{bucket}/{prefix}?endpoint=https://127.0.0.1:{port}"),
            ObjectServer::Azurite => {
                let account = azurite::ACCOUNT;
                format!("az://{bucket}/{prefix}?account={account}&endpoint=https://127.0.0.1:{port}")
            }
        }
    }

    /// Returns a file with a key and its secret.
    pub fn credentials(&self) -> PathBuf {
        self.directory.path().join("credentials/0")
    }

    /// Returns a credential file for each supported kind.
    pub fn all_credentials(&self) -> Result<Vec<PathBuf>> {
        files(&self.directory.path().join("credentials"))
    }

    /// Returns invalid credential files.
    pub fn wrong_credentials(&self) -> Result<Vec<PathBuf>> {
        files(&self.directory.path().join("wrong-credentials"))
    }

    /// Returns the CA certificate that clients must trust.
    pub fn authority(&self) -> PathBuf {
        self.directory.path().join("ca.crt")
    }

    /// Adds objects that contain their own names to a directory of the bucket, faster than one by one.
    pub fn fill(&self, folder: &str, names: &[String]) -> Result<()> {
        match self.server {
            ObjectServer::Versitygw => versitygw::fill(self.directory.path(), folder, names),
            ObjectServer::Azurite => azurite::fill(self.directory.path(), self.port, folder, names),
        }
    }

    /// Returns the objects in a directory of the bucket by name. Does not use the client under test.
    pub fn objects(&self, folder: &str) -> Result<BTreeMap<String, Vec<u8>>> {
        match self.server {
            ObjectServer::Versitygw => versitygw::objects(self.directory.path(), folder),
            ObjectServer::Azurite => azurite::objects(self.directory.path(), self.port, folder),
        }
    }
}

/// Returns the files sorted by name.
pub(crate) fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("list `{}`", folder.display()))?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<PathBuf>>>()?;
    paths.sort();
    Ok(paths)
}
