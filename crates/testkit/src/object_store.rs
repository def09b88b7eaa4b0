//! A real S3-compatible server (Versity's gateway over a folder) over TLS, which checks signatures.

use std::net::{Ipv4Addr, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use landfall_pki::{Authority, Leaf, Purpose};
use tempfile::TempDir;

use crate::{Binary, Need, Process, free_port};

const START_LIMIT: Duration = Duration::from_mins(1);

/// An object store that runs until dropped, with one empty bucket.
#[derive(Debug)]
pub struct ObjectStore {
    port: u16,
    directory: TempDir,
    _process: Process,
}

// === impl ObjectStore ===

impl ObjectStore {
    pub const NEEDS: &'static [Need] = &[Need::Built(Binary::Versitygw)];
    pub const BUCKET: &'static str = "fleet";
    const KEY_ID: &'static str = "harbour";
    const SECRET: &'static str = "between-sea-and-shore";

    pub fn start() -> Result<Self> {
        let directory = tempfile::tempdir().context("make a folder for an object store")?;
        let path = |name: &str| directory.path().join(name);
        let authority = Authority::new("object store authority", 7)?;
        let names = [Ipv4Addr::LOCALHOST.to_string()];
        let pair = authority.issue(&Leaf::new("object store", Purpose::Serve).names(names))?;
        std::fs::write(path("tls.crt"), &pair.certificate)?;
        std::fs::write(path("tls.key"), pair.key.expose())?;
        std::fs::write(path("ca.crt"), authority.certificate())?;
        for (name, secret) in [("credentials", Self::SECRET), ("wrong-credentials", "somebody-else")] {
            let text = format!(
                "[default]\naws_access_key_id = {}\naws_secret_access_key = {secret}\n",
                Self::KEY_ID
            );
            std::fs::write(path(name), text)?;
        }
        // A bucket is a folder.
        std::fs::create_dir_all(path("data").join(Self::BUCKET))?;
        std::fs::create_dir(path("sidecar"))?;
        let port = free_port()?;
        let program = Binary::Versitygw.path()?;
        let mut process = Process::start("versitygw", &program, directory.path(), |command| {
            command
                .env("ROOT_ACCESS_KEY", Self::KEY_ID)
                .env("ROOT_SECRET_KEY", Self::SECRET)
                .args(["--port", &format!("127.0.0.1:{port}"), "--region", "us-east-1", "--quiet"])
                .arg("--cert")
                .arg(path("tls.crt"))
                .arg("--key")
                .arg(path("tls.key"))
                .args(["posix", "--sidecar"])
                .arg(path("sidecar"))
                .arg(path("data"));
        })?;
        process.wait_until("the object store to answer", START_LIMIT, || {
            TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok()
        })?;
        Ok(Self { port, directory, _process: process })
    }

    /// `s3://…` of a folder in the bucket.
    pub fn location(&self, prefix: &str) -> String {
        format!("s3://{}/{prefix}?endpoint=https://127.0.0.1:{}", Self::BUCKET, self.port)
    }

    /// A file with the key and its secret.
    pub fn credentials(&self) -> PathBuf {
        self.directory.path().join("credentials")
    }

    /// The same key with another secret.
    pub fn wrong_credentials(&self) -> PathBuf {
        self.directory.path().join("wrong-credentials")
    }

    /// The certificate clients must trust.
    pub fn authority(&self) -> PathBuf {
        self.directory.path().join("ca.crt")
    }

    /// The folder the bucket is.
    pub fn bucket(&self) -> PathBuf {
        self.directory.path().join("data").join(Self::BUCKET)
    }
}
