//! The real machine, at its root or below another.

use std::ffi::OsString;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use landfall_durable::{self as durable, Disk, HostDisk};
use landfall_fetch::{FetchError, Fetcher, Patience};
use landfall_model::Secret;
use landfall_net::{Backoff, Retries};
use landfall_redact::{BuildError, Kind, Redactor};
use landfall_steps::{BootId, BootIdError};

use super::systemd::Systemd;
use super::{Environment, is_missing, tree};
use crate::in_place::environment::ClusterAccess;
use crate::prepare::update_engine::Engine;

/// Limit for links in one path, the same as that of the kernel.
const MAX_LINKS: usize = 40;

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
const MAX_BOOT_ID: u64 = 128;

/// This machine.
#[derive(Debug)]
pub struct HostEnvironment {
    pub(crate) root: PathBuf,
    pub(crate) fetcher: Fetcher,
    pub(crate) systemd: Systemd,
    pub(crate) engine: Engine,
    pub(crate) api_retries: Retries,
    pub(crate) documents: Patience,
    pub(crate) images: Option<Patience>,
    pub(crate) access: ClusterAccess,
    /// Removes secrets from the output of programs; without it, no program is run.
    pub(crate) redactor: Option<Redactor>,
}

#[derive(Debug, thiserror::Error)]
pub enum HostEnvironmentError {
    #[error("cannot prepare downloads")]
    Fetch(#[source] FetchError),
    #[error("cannot prepare redaction")]
    Redact(#[source] BuildError),
}

// === impl HostEnvironment ===

impl HostEnvironment {
    /// The machine below `root`. `authority` replaces the machine's own CAs for downloads.
    pub fn new(root: &Path, authority: Option<&Path>) -> Result<Self, HostEnvironmentError> {
        Ok(Self {
            root: root.to_owned(),
            fetcher: Fetcher::new(authority).map_err(HostEnvironmentError::Fetch)?,
            systemd: Systemd::at(root),
            engine: Engine::of_machine(root),
            api_retries: Backoff::millis::<5000, 5000>().tries::<3>(),
            documents: Patience::DOCUMENT,
            images: None,
            access: ClusterAccess::default(),
            redactor: None,
        })
    }

    #[must_use]
    pub fn cluster_access(self, access: ClusterAccess) -> Self {
        Self { access, ..self }
    }

    /// Lets programs be run, whose output is logged without these secrets.
    pub fn redact(self, secrets: &[Secret<String>]) -> Result<Self, HostEnvironmentError> {
        let builder = secrets
            .iter()
            .fold(Redactor::builder(), |builder, secret| builder.known_secret(Kind::PASSWORD, secret));
        let redactor = Some(builder.build().map_err(HostEnvironmentError::Redact)?);
        Ok(Self { redactor, ..self })
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Requests a reboot from systemd. When this returns, systemd has started it.
    pub fn reboot(&self) -> Result<(), String> {
        self.systemd.reboot()
    }

    pub(crate) async fn with_systemd<T: Send + 'static>(
        &self,
        call: impl FnOnce(&Systemd) -> Result<T, String> + Send + 'static,
    ) -> Result<T, String> {
        let systemd = self.systemd.clone();
        blocking(move || call(&systemd)).await.map_err(|error| error.to_string())?
    }
}

/// Runs blocking work on a separate thread.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)
}

impl Environment for HostEnvironment {
    fn disk(&self) -> Arc<dyn Disk> {
        Arc::new(HostDisk)
    }

    fn host_path(&self, path: &Path) -> PathBuf {
        // Only names: a root is never left by `..`.
        let names = path.components().filter(|component| matches!(component, Component::Normal(_)));
        self.root.join(names.collect::<PathBuf>())
    }

    fn resolve(&self, path: &Path) -> PathBuf {
        let names = |path: &Path| -> Vec<OsString> {
            let parts = path.components().rev();
            let parts = parts.filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir));
            parts.map(|part| part.as_os_str().to_owned()).collect()
        };
        let (mut left, mut here, mut links) = (names(path), PathBuf::new(), 0);
        while let Some(name) = left.pop() {
            if name == ".." {
                here.pop();
                continue;
            }
            here.push(name);
            if let Ok(to) = std::fs::read_link(self.root.join(&here))
                && links < MAX_LINKS
            {
                links += 1;
                here.pop();
                if to.is_absolute() {
                    here = PathBuf::new();
                }
                left.extend(names(&to));
            }
        }
        self.root.join(here)
    }

    fn boot(&self) -> Result<BootId, BootIdError> {
        // The boot ID of the machine below the root: a container may run under another kernel and see a different
        // one.
        match HostDisk.read(&self.host_path(Path::new(BOOT_ID)), MAX_BOOT_ID) {
            Ok(bytes) => BootId::parse(&String::from_utf8_lossy(&bytes)),
            Err(_) => BootId::read(&HostDisk),
        }
    }

    fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        match self.host_path(path).symlink_metadata() {
            Ok(_) => Ok(true),
            Err(error) if is_missing(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn set_link(&self, path: &Path, to: &Path) -> io::Result<()> {
        durable::write_link(&self.host_path(path), to).map_err(|error| error.source)
    }

    fn remove_all(&self, path: &Path) -> io::Result<()> {
        if !self.exists(path)? {
            return Ok(());
        }
        let path = self.host_path(path);
        tree::remove(&path)?;
        HostDisk.sync_dir(path.parent().ok_or(io::ErrorKind::InvalidInput)?)
    }

    async fn reload_units(&self) -> Result<(), String> {
        // A directory or a mounted disk has no systemd; units written there are read at its next boot.
        if !self.systemd.is_there() {
            return Ok(());
        }
        self.with_systemd(Systemd::reload).await
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::environment::read;

    /// In a pod the machine is at `/host`, and its links do not say so.
    #[test]
    fn links_of_a_machine_lead_to_places_of_the_machine() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("host");
        std::fs::create_dir_all(root.join("etc/pki/anchors")).unwrap();
        std::fs::create_dir_all(root.join("usr/lib")).unwrap();
        std::fs::write(root.join("etc/pki/anchors/ca.crt"), "of the machine").unwrap();
        std::fs::write(folder.path().join("outside"), "of the pod").unwrap();
        for (link, to) in [
            ("etc/certs", "/etc/pki"),
            ("etc/ca.crt", "certs/anchors/ca.crt"),
            ("usr/lib/ca.crt", "../../../../etc/certs/anchors/ca.crt"),
            ("etc/outside", "../../outside"),
            ("etc/circle", "/etc/circle"),
        ] {
            symlink(to, root.join(link)).unwrap();
        }
        let env = HostEnvironment::new(&root, None).unwrap();
        for path in ["/etc/pki/anchors/ca.crt", "/etc/certs/anchors/ca.crt", "/etc/ca.crt", "/usr/lib/ca.crt"]
        {
            let found = read(&env, Path::new(path), 64).unwrap();
            assert_eq!(found.as_deref(), Some(&b"of the machine"[..]), "{path}");
        }
        assert_eq!(read(&env, Path::new("/etc/outside"), 64).unwrap(), None, "nothing of the pod's");
        assert_eq!(read(&env, Path::new("/etc/circle"), 64).unwrap(), None, "and a circle has an end");
    }

    #[test]
    fn a_root_is_never_left() {
        let env = HostEnvironment::new(Path::new("/r"), None).unwrap();
        assert_eq!(env.host_path(Path::new("/etc/x")), Path::new("/r/etc/x"));
        assert_eq!(env.host_path(Path::new("../../etc/x")), Path::new("/r/etc/x"));
    }
}
