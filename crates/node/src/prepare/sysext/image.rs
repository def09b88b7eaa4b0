//! Opens an extension image without mounting it: squashfs, as common build tools write it.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use landfall_model::chain;

use super::release::ExtensionRelease;
use super::squashfs::{MAGIC, Squashfs, SquashfsError};

/// A real `extension-release` has a hundred bytes.
const MAX_RELEASE_BYTES: u32 = 64 * 1024;

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

/// Returns the `extension-release` of the image.
pub fn release(path: &Path, name: &str) -> Result<ExtensionRelease, ImageError> {
    let read = |source| ImageError::Read { path: path.to_owned(), source };
    let broken = |error: SquashfsError| match error {
        SquashfsError::Read(source) => ImageError::Read { path: path.to_owned(), source },
        error => ImageError::Broken { path: path.to_owned(), reason: chain(&error).to_string() },
    };
    let mut file = File::open(path).map_err(read)?;
    if !begins_with(&mut file, &MAGIC).map_err(read)? {
        return Err(ImageError::NotSquashfs { path: path.to_owned() });
    }
    let mut image = Squashfs::open(BufReader::new(file)).map_err(broken)?;
    let mut top = image.top().map_err(broken)?.into_iter();
    if let Some(foreign) = top.find(|name| !matches!(name.as_str(), "usr" | "opt")) {
        return Err(ImageError::Foreign { path: path.to_owned(), foreign });
    }
    let wanted = format!("/usr/lib/extension-release.d/extension-release.{name}");
    let content = image.file(&wanted, MAX_RELEASE_BYTES).map_err(broken)?;
    let content = content.ok_or_else(|| ImageError::NoRelease {
        path: path.to_owned(),
        release: wanted,
        name: name.to_owned(),
    })?;
    Ok(ExtensionRelease::parse(&String::from_utf8_lossy(&content)))
}

fn begins_with(file: &mut File, magic: &[u8]) -> std::io::Result<bool> {
    use std::io::Read as _;
    let mut found = Vec::new();
    file.take(magic.len() as u64).read_to_end(&mut found)?;
    Ok(found == magic)
}
