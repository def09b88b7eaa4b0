//! Opening an extension image without mounting it: squashfs, as the field makes them.

use std::fs::File;
use std::io::{BufReader, Read as _};
use std::path::{Path, PathBuf};

use backhand::{FilesystemReader, InnerNode};

use super::release::ExtensionRelease;

/// A real `extension-release` has a hundred bytes.
const MAX_RELEASE_BYTES: u64 = 64 * 1024;
/// squashfs, little-endian.
const MAGIC: &[u8; 4] = b"hsqs";

#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    #[error("cannot read `{path}`")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("`{path}` is not a squashfs image")]
    NotSquashfs { path: PathBuf },
    #[error("`{path}` cannot be opened: {reason}")]
    Broken { path: PathBuf, reason: String },
    #[error("`{path}` has no `{release}`: systemd would not take it for the extension `{name}`")]
    NoRelease { path: PathBuf, release: String, name: String },
    #[error("`{path}` holds `{foreign}`: an extension may only hold `usr` and `opt`")]
    Foreign { path: PathBuf, foreign: String },
}

/// What the image says it is made for.
pub fn release(path: &Path, name: &str) -> Result<ExtensionRelease, ImageError> {
    let read = |source| ImageError::Read { path: path.to_owned(), source };
    let broken = |reason: String| ImageError::Broken { path: path.to_owned(), reason };
    let mut magic = [0; 4];
    let mut file = File::open(path).map_err(read)?;
    match file.read_exact(&mut magic) {
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {}
        result => result.map_err(read)?,
    }
    if magic != *MAGIC {
        return Err(ImageError::NotSquashfs { path: path.to_owned() });
    }
    let file = BufReader::new(File::open(path).map_err(read)?);
    let image = FilesystemReader::from_reader(file).map_err(|error| broken(error.to_string()))?;
    let wanted = format!("/usr/lib/extension-release.d/extension-release.{name}");
    let mut found = None;
    for node in image.files() {
        let path_in_image = node.fullpath.to_string_lossy();
        let top = path_in_image.trim_start_matches('/').split('/').next().unwrap_or_default();
        if !matches!(top, "" | "usr" | "opt") {
            return Err(ImageError::Foreign { path: path.to_owned(), foreign: top.to_owned() });
        }
        if path_in_image == wanted
            && let InnerNode::File(file) = &node.inner
        {
            found = Some(file);
        }
    }
    let file = found.ok_or_else(|| ImageError::NoRelease {
        path: path.to_owned(),
        release: wanted,
        name: name.to_owned(),
    })?;
    let mut text = String::new();
    let mut content = image.file(file).reader().take(MAX_RELEASE_BYTES);
    content.read_to_string(&mut text).map_err(|error| broken(error.to_string()))?;
    Ok(ExtensionRelease::parse(&text))
}
