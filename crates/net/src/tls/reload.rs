//! Values that are built from files and rebuilt when the files change.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use landfall_model::{Secret, chain};
use sha2::{Digest as _, Sha256};

use super::TlsError;

/// Files are compared by content: the kubelet replaces Secrets through symbolic links, which modification times miss.
const RELOAD_INTERVAL: Duration = Duration::from_secs(15);
/// Certificate and key files are far smaller; a device or a log file is not.
const MAX_FILE: u64 = 4 * 1024 * 1024;

/// The content of some files at one time.
#[expect(missing_debug_implementations, reason = "contains private keys")]
pub struct FileSnapshot(Vec<(PathBuf, io::Result<Secret<Vec<u8>>>)>);

type Build<T> = dyn Fn(&FileSnapshot) -> Result<T, TlsError> + Send + Sync;

/// A value built from files, rebuilt when they change.
pub struct Reloading<T> {
    paths: Vec<PathBuf>,
    build: Box<Build<T>>,
    current: RwLock<Current<T>>,
}

struct Current<T> {
    digest: [u8; 32],
    value: Arc<T>,
}

// === impl FileSnapshot ===

impl FileSnapshot {
    pub fn read(paths: &[PathBuf]) -> Self {
        Self(paths.iter().map(|path| (path.clone(), read(path).map(Secret::new))).collect())
    }

    /// Returns the content of a required file.
    pub fn get(&self, path: &Path) -> Result<&[u8], TlsError> {
        let found = self.0.iter().find(|(known, _)| known == path);
        let failed = |source: io::Error| TlsError::Read { path: path.to_owned(), source };
        match found {
            Some((_, Ok(content))) => Ok(content.expose()),
            Some((_, Err(error))) => Err(failed(io::Error::new(error.kind(), error.to_string()))),
            None => Err(failed(io::ErrorKind::NotFound.into())),
        }
    }

    fn digest(&self) -> [u8; 32] {
        let mut all = Sha256::new();
        for (path, content) in &self.0 {
            all.update(path.as_os_str().as_encoded_bytes());
            match content {
                Ok(content) => all.update(Sha256::digest(content.expose())),
                Err(error) => all.update(error.to_string()),
            }
        }
        all.finalize().into()
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    use std::io::Read as _;
    let mut content = Vec::new();
    let read = std::fs::File::open(path)?.take(MAX_FILE + 1).read_to_end(&mut content)?;
    if read as u64 > MAX_FILE { Err(io::ErrorKind::FileTooLarge.into()) } else { Ok(content) }
}

// === impl Reloading ===

impl<T: Send + Sync + 'static> Reloading<T> {
    pub fn load(
        paths: Vec<PathBuf>,
        build: impl Fn(&FileSnapshot) -> Result<T, TlsError> + Send + Sync + 'static,
    ) -> Result<Arc<Self>, TlsError> {
        let files = FileSnapshot::read(&paths);
        let current = Current { digest: files.digest(), value: Arc::new(build(&files)?) };
        Ok(Arc::new(Self { paths, build: Box::new(build), current: RwLock::new(current) }))
    }

    pub fn get(&self) -> Arc<T> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner).value)
    }

    /// Rebuilds the value if a file changed. An unusable file is logged, and the previous value stays in use.
    pub fn reload(&self) {
        let files = FileSnapshot::read(&self.paths);
        let digest = files.digest();
        if self.current.read().unwrap_or_else(PoisonError::into_inner).digest == digest {
            return;
        }
        match (self.build)(&files) {
            Ok(value) => {
                let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
                *current = Current { digest, value: Arc::new(value) };
                tracing::info!(first = ?self.paths.first(), "certificates reloaded");
            }
            Err(error) => tracing::warn!(error = %chain(&error), "certificates not reloaded"),
        }
    }

    /// Checks the files periodically, without end.
    pub async fn watch(self: Arc<Self>) {
        loop {
            tokio::time::sleep(RELOAD_INTERVAL).await;
            let reloading = Arc::clone(&self);
            // A disk that does not respond must not block connections.
            if tokio::task::spawn_blocking(move || reloading.reload()).await.is_err() {
                return;
            }
        }
    }
}

impl<T> fmt::Debug for Reloading<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reloading").field("paths", &self.paths).finish_non_exhaustive()
    }
}
