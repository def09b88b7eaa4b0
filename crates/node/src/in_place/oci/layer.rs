//! Extracts one file from one layer.

use std::io::{self, BufReader, Read};
use std::path::{Component, Path, PathBuf};

use crate::in_place::archive::{self, ArchiveError};

/// machine-config-daemon has some hundred megabytes.
const MAX_FILE: u64 = 1024 * 1024 * 1024;
/// Number of entries of the largest layers in practice.
const MAX_ENTRIES: usize = 2_000_000;
/// Prefix of the marker that a later layer contains for a removed file.
const WHITEOUT: &str = ".wh.";
const OPAQUE: &str = ".wh..wh..opq";

/// The state of a file in a layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Extracted {
    File(Vec<u8>),
    /// This layer removes it: earlier layers do not count.
    Removed,
    Absent,
}

#[derive(Debug, thiserror::Error)]
pub enum LayerError {
    #[error("layers of kind `{kind}` are not known")]
    Kind { kind: String },
    #[error("the layer cannot be read")]
    Archive(#[from] ArchiveError),
    #[error("`{path}` in the layer is a link")]
    Link { path: String },
    #[error("the layer has a file of {bytes} bytes under this name, or too many files")]
    TooLarge { bytes: u64 },
}

/// Searches a layer of this media type for a file.
pub fn extract(layer: impl Read, kind: &str, path: &str) -> Result<Extracted, LayerError> {
    let file = BufReader::new(layer);
    let reader: Box<dyn Read + '_> = if kind.ends_with("tar+gzip") || kind.ends_with("tar.gzip") {
        Box::new(flate2::read::MultiGzDecoder::new(file))
    } else if kind.ends_with("tar+zstd") {
        Box::new(zstd::Decoder::new(file).map_err(ArchiveError::Damaged)?)
    } else if kind.rsplit('.').next() == Some("tar") {
        Box::new(file)
    } else {
        return Err(LayerError::Kind { kind: kind.chars().take(96).collect() });
    };
    search(reader, &normal(Path::new(path)))
}

fn search(reader: impl Read, wanted: &Path) -> Result<Extracted, LayerError> {
    let (mut removed, mut entries) = (false, 0);
    let found = archive::find(reader, |path, entry| {
        entries += 1;
        if entries > MAX_ENTRIES {
            return Err(LayerError::TooLarge { bytes: 0 });
        }
        let path = normal(&path);
        if path != wanted {
            removed |= takes_away(&path, wanted);
            return Ok(None);
        }
        if !entry.header().entry_type().is_file() {
            return Err(LayerError::Link { path: wanted.display().to_string() });
        }
        let bytes = entry.size();
        if bytes > MAX_FILE {
            return Err(LayerError::TooLarge { bytes });
        }
        let mut content = Vec::new();
        entry.read_to_end(&mut content).map_err(ArchiveError::Damaged)?;
        if content.len() as u64 != bytes {
            return Err(ArchiveError::Damaged(io::ErrorKind::UnexpectedEof.into()).into());
        }
        Ok(Some(Extracted::File(content)))
    })?;
    Ok(found.unwrap_or(if removed { Extracted::Removed } else { Extracted::Absent }))
}

/// Returns whether an entry is a removal marker that applies to the file.
fn takes_away(mark: &Path, wanted: &Path) -> bool {
    let (Some(name), Some(folder)) = (mark.file_name().and_then(|name| name.to_str()), mark.parent()) else {
        return false;
    };
    if name == OPAQUE {
        return wanted.starts_with(folder);
    }
    name.strip_prefix(WHITEOUT).is_some_and(|removed| wanted.starts_with(folder.join(removed)))
}

/// Normalizes a path: names only, without `./` and `/`.
fn normal(path: &Path) -> PathBuf {
    path.components().filter(|part| matches!(part, Component::Normal(_))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::in_place::archive::{MAX_ABOUT, MAX_NAME};

    fn archive(files: &[(&str, &str)]) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        for (path, content) in files {
            let mut header = tar::Header::new_gnu();
            header.set_size(content.len() as u64);
            header.set_mode(0o755);
            header.set_cksum();
            builder.append_data(&mut header, path, content.as_bytes()).unwrap();
        }
        builder.into_inner().unwrap()
    }

    fn searched(files: &[(&str, &str)]) -> Extracted {
        search(archive(files).as_slice(), Path::new("usr/bin/mcd")).unwrap()
    }

    #[test]
    fn a_file_is_found_or_known_to_be_gone() {
        assert_eq!(searched(&[("./usr/bin/mcd", "x")]), Extracted::File(b"x".to_vec()));
        assert_eq!(searched(&[("usr/bin/other", "x")]), Extracted::Absent);
        assert_eq!(searched(&[("usr/bin/.wh.mcd", "")]), Extracted::Removed);
        assert_eq!(searched(&[("usr/.wh.bin", "")]), Extracted::Removed);
        assert_eq!(searched(&[("usr/.wh..wh..opq", "")]), Extracted::Removed);
        assert_eq!(searched(&[("etc/.wh..wh..opq", "")]), Extracted::Absent);
        // Files added to an opaque directory in the same layer count.
        let again = [("usr/bin/.wh..wh..opq", ""), ("usr/bin/mcd", "new")];
        assert_eq!(searched(&again), Extracted::File(b"new".to_vec()));
    }

    #[test]
    fn names_have_a_bound_of_their_own() {
        let found = |length: usize| {
            let long = "d/".repeat(length / 2);
            let files = [(&*format!("{long}x"), "x"), ("usr/bin/mcd", "content")];
            search(archive(&files).as_slice(), Path::new("usr/bin/mcd"))
        };
        assert_eq!(found(MAX_NAME - 2).unwrap(), Extracted::File(b"content".to_vec()));
        assert!(matches!(found(MAX_NAME), Err(LayerError::Archive(ArchiveError::LongName { .. }))));
        let bomb = usize::try_from(MAX_ABOUT).unwrap();
        assert!(matches!(found(bomb), Err(LayerError::Archive(ArchiveError::LongNames))));
        // The limit applies to names, not to the content of a file.
        let large = "x".repeat(bomb * 2);
        let files = [("large", large.as_str()), ("usr/bin/mcd", "content")];
        assert_eq!(searched(&files), Extracted::File(b"content".to_vec()));
    }

    #[test]
    fn damage_is_an_error() {
        let mut bytes = archive(&[("usr/bin/mcd", "content")]);
        bytes.truncate(514);
        assert!(matches!(
            search(bytes.as_slice(), Path::new("usr/bin/mcd")),
            Err(LayerError::Archive(ArchiveError::Damaged(_)))
        ));
        assert!(matches!(extract(&b""[..], "application/x", "a"), Err(LayerError::Kind { .. })));
        let gzip = extract(&b""[..], "application/vnd.oci.image.layer.v1.tar+gzip", "a");
        assert!(matches!(gzip, Err(LayerError::Archive(ArchiveError::Damaged(_)))));
    }
}
