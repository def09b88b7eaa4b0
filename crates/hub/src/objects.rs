//! Bundles as files, named by what they hold.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

/// Where unfinished files lie; emptied at every start.
const UNFINISHED: &str = "unfinished";

/// A folder of files by the SHA-256 of their content.
#[derive(Clone, Debug)]
pub(crate) struct Objects {
    root: PathBuf,
}

#[derive(Debug, thiserror::Error)]
#[error("cannot {doing} `{}`", path.display())]
pub struct ObjectError {
    doing: &'static str,
    path: PathBuf,
    #[source]
    source: io::Error,
}

// === impl Objects ===

impl Objects {
    pub(crate) fn open(root: &Path) -> Result<Self, ObjectError> {
        let unfinished = root.join(UNFINISHED);
        match fs::remove_dir_all(&unfinished) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(failed("empty", &unfinished)(error));
            }
            _ => {}
        }
        make_folder(&unfinished)?;
        Ok(Self { root: root.to_owned() })
    }

    /// A file to write into; it goes away unless it is kept.
    pub(crate) fn draft(&self) -> Result<NamedTempFile, ObjectError> {
        let folder = self.root.join(UNFINISHED);
        NamedTempFile::new_in(&folder).map_err(failed("make a file in", &folder))
    }

    /// Keeps a file under its digest, on the disk for good.
    pub(crate) fn keep(&self, draft: NamedTempFile, digest: &str) -> Result<(), ObjectError> {
        let path = self.path(digest);
        let folder = path.parent().unwrap_or(&self.root);
        make_folder(folder)?;
        draft.as_file().sync_all().map_err(failed("write", &path))?;
        draft.persist(&path).map_err(|error| failed("write", &path)(error.error))?;
        for folder in [folder, self.root.as_path()] {
            File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed("write", folder))?;
        }
        Ok(())
    }

    pub(crate) fn read(&self, digest: &str) -> Result<File, ObjectError> {
        let path = self.path(digest);
        File::open(&path).map_err(failed("open", &path))
    }

    /// What is gone already is success.
    pub(crate) fn remove(&self, digest: &str) -> Result<(), ObjectError> {
        let path = self.path(digest);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove", &path)(error)),
            _ => Ok(()),
        }
    }

    /// Digests come from the store or from our own hashing, so they are hexadecimal; a folder by their first two digits
    /// keeps folders short.
    fn path(&self, digest: &str) -> PathBuf {
        self.root.join(digest.get(..2).unwrap_or("00")).join(digest)
    }
}

fn make_folder(path: &Path) -> Result<(), ObjectError> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed("make the folder", path))
}

fn failed(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ObjectError {
    move |source| ObjectError { doing, path: path.to_owned(), source }
}
