//! The payload of scripts for a package-based machine: checks its content without running anything.

use std::convert::Infallible;
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};

use crate::in_place::archive::{self, ArchiveError};

/// Scripts, playbooks and roles; packages come from the mirrors.
pub const MAX_BYTES: u64 = 2 * 1024 * 1024 * 1024;
const MAX_ENTRIES: usize = 200_000;
/// Script that runs in the boot that sets up the base.
pub const BASE: &str = "bootstrap/bootstrap_base_openshift_4.sh";
/// Script that runs in the next boot. A payload without it runs a second time from the start, as in the original: its
/// own flags record which half is left.
pub const KUBE: &str = "bootstrap/bootstrap_kube_openshift_4.sh";

/// A payload that was read completely.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contents {
    pub files: usize,
    pub bytes: u64,
    pub has_kube: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum PayloadError {
    #[error("the payload cannot be read")]
    Archive(#[from] ArchiveError),
    #[error("the payload lacks `{BASE}`")]
    NoBase,
    #[error("the payload has `{path}`, which leads out of its folder")]
    Escapes { path: String },
    #[error("the payload has `{path}`, which is neither a file, a folder nor a link")]
    Kind { path: String },
    #[error("the payload is larger than {MAX_BYTES} bytes or {MAX_ENTRIES} files")]
    TooLarge,
}

/// An entry of a payload.
#[expect(missing_debug_implementations, reason = "holds a reader")]
pub enum Piece<'a> {
    Folder,
    File { mode: u32, content: &'a mut dyn Read },
    Link { to: PathBuf },
}

/// Reads a payload to its very end, so that a truncated one is always rejected, and passes on every entry.
pub fn read(
    reader: impl Read,
    mut take: impl FnMut(&Path, Piece<'_>) -> io::Result<()>,
) -> Result<Contents, PayloadError> {
    let mut plain = decompress(reader).map_err(ArchiveError::Damaged)?;
    let mut contents = Contents { files: 0, bytes: 0, has_kube: false };
    let (mut has_base, mut entries) = (false, 0);
    archive::find(&mut plain, |path, entry| -> Result<Option<Infallible>, PayloadError> {
        let shown = || archive::shown(&path);
        let path = inside(&path).ok_or_else(|| PayloadError::Escapes { path: shown() })?;
        let size = entry.size();
        contents.bytes = contents.bytes.saturating_add(size);
        entries += 1;
        if entries > MAX_ENTRIES || contents.bytes > MAX_BYTES {
            return Err(PayloadError::TooLarge);
        }
        let kind = entry.header().entry_type();
        if kind.is_dir() {
            take(&path, Piece::Folder).map_err(ArchiveError::Damaged)?;
        } else if kind.is_file() {
            let mode = entry.header().mode().unwrap_or(0o644) & 0o777;
            let mut counted = Counted { inner: entry, count: 0 };
            take(&path, Piece::File { mode, content: &mut counted }).map_err(ArchiveError::Damaged)?;
            io::copy(&mut counted, &mut io::sink()).map_err(ArchiveError::Damaged)?;
            if counted.count != size {
                return Err(ArchiveError::Damaged(io::ErrorKind::UnexpectedEof.into()).into());
            }
            contents.files += 1;
            has_base |= path == Path::new(BASE);
            contents.has_kube |= path == Path::new(KUBE);
        } else if kind.is_symlink() {
            let to = entry.link_name().map_err(ArchiveError::Damaged)?.unwrap_or_default().into_owned();
            archive::check_name(&to)?;
            let folder = path.parent().unwrap_or(Path::new(""));
            if to.is_absolute() || !stays_inside(folder, &to) {
                return Err(PayloadError::Escapes { path: shown() });
            }
            take(&path, Piece::Link { to }).map_err(ArchiveError::Damaged)?;
        } else if !kind.is_pax_global_extensions() {
            return Err(PayloadError::Kind { path: shown() });
        }
        Ok(None)
    })?;
    // The archive may end before the file: a wrong checksum after it counts as well.
    io::copy(&mut plain.take(MAX_BYTES), &mut io::sink()).map_err(ArchiveError::Damaged)?;
    if has_base { Ok(contents) } else { Err(PayloadError::NoBase) }
}

struct Counted<R> {
    inner: R,
    count: u64,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.count += read as u64;
        Ok(read)
    }
}

/// Detects the format by the first bytes: gzip, zstd or plain.
fn decompress<'a>(mut reader: impl Read + 'a) -> io::Result<Box<dyn Read + 'a>> {
    let mut first = Vec::new();
    reader.by_ref().take(4).read_to_end(&mut first)?;
    let is_gzip = first.starts_with(&[0x1f, 0x8b]);
    let is_zstd = first == [0x28, 0xb5, 0x2f, 0xfd];
    let whole = io::Cursor::new(first).chain(reader);
    Ok(if is_gzip {
        Box::new(flate2::read::MultiGzDecoder::new(whole))
    } else if is_zstd {
        Box::new(zstd::Decoder::new(whole)?)
    } else {
        Box::new(whole)
    })
}

/// Returns the path below the directory, if it stays inside.
fn inside(path: &Path) -> Option<PathBuf> {
    let mut inside = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => inside.push(name),
            Component::CurDir => {}
            _ => return None,
        }
    }
    Some(inside)
}

fn stays_inside(folder: &Path, to: &Path) -> bool {
    let mut depth = folder.components().count();
    for part in to.components() {
        match part {
            Component::Normal(_) => depth += 1,
            Component::ParentDir if depth > 0 => depth -= 1,
            Component::CurDir => {}
            _ => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;
    use crate::in_place::archive::{MAX_ABOUT, MAX_NAME};

    fn archive(files: &[(&str, &str)]) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        for (path, content) in files {
            let mut header = tar::Header::new_gnu();
            // Built by hand: the builder refuses names that lead outside.
            header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
            header.set_size(content.len() as u64);
            header.set_mode(0o755);
            header.set_cksum();
            builder.append(&header, content.as_bytes()).unwrap();
        }
        builder.into_inner().unwrap()
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        gzip.write_all(bytes).unwrap();
        gzip.finish().unwrap()
    }

    fn judged(bytes: &[u8]) -> Result<Contents, PayloadError> {
        read(bytes, |_, _| Ok(()))
    }

    #[test]
    fn a_whole_payload_is_counted() {
        let plain = archive(&[(BASE, "echo base"), (KUBE, "echo kube"), ("./x", "y")]);
        let expected = Contents { files: 3, bytes: 19, has_kube: true };
        assert_eq!(judged(&plain).unwrap(), expected);
        assert_eq!(judged(&gzip(&plain)).unwrap(), expected);
    }

    /// I3: in the original a payload that could not be unpacked skipped its own check, and the node was wiped.
    #[test]
    fn i3_a_payload_cut_anywhere_is_refused() {
        let whole = gzip(&archive(&[(BASE, "echo base"), ("bootstrap/more", "content")]));
        for length in 0..whole.len() {
            assert!(judged(&whole[..length]).is_err(), "cut at {length}");
        }
        for at in (0..whole.len()).step_by(3).skip(4) {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x55;
            assert!(judged(&damaged).is_err(), "damaged at {at}");
        }
        assert!(matches!(judged(&archive(&[("other", "x")])), Err(PayloadError::NoBase)));
        assert!(judged(b"<html>not found</html>").is_err());
    }

    /// Returns the link, or file, that a GNU archiver would write with this preceding long name.
    fn with_long(kind: tar::EntryType, name: &[u8]) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_size(name.len() as u64);
        header.set_cksum();
        builder.append(&header, name).unwrap();
        let mut bytes = builder.into_inner().unwrap();
        // Truncates the end marker of the builder, because more entries follow.
        bytes.truncate(512 + name.len().next_multiple_of(512));
        let mut link = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Symlink);
        header.set_size(0);
        header.set_cksum();
        link.append_link(&mut header, "bootstrap/link", "more").unwrap();
        bytes.extend(link.into_inner().unwrap());
        bytes
    }

    #[test]
    fn names_have_a_bound_of_their_own() {
        use tar::EntryType;
        for kind in [EntryType::GNULongName, EntryType::GNULongLink] {
            // A name within the limit is accepted, so the error is about the missing base.
            let fits = judged(&with_long(kind, &vec![b'n'; MAX_NAME]));
            assert!(matches!(fits, Err(PayloadError::NoBase)), "{fits:?}");
            let long = judged(&with_long(kind, &vec![b'n'; MAX_NAME + 1])).unwrap_err();
            assert!(matches!(long, PayloadError::Archive(ArchiveError::LongName { .. })), "{long:?}");
            assert!(long.to_string().len() < 256, "{long}");
        }
        let claims = usize::try_from(MAX_ABOUT).unwrap();
        for kind in [EntryType::GNULongName, EntryType::GNULongLink, EntryType::XHeader] {
            let bomb = judged(&gzip(&with_long(kind, &vec![b'n'; claims])));
            assert!(
                matches!(bomb, Err(PayloadError::Archive(ArchiveError::LongNames))),
                "{kind:?}: {bomb:?}"
            );
        }
    }

    #[test]
    fn nothing_leads_out_of_the_folder() {
        for path in ["../x", "/etc/passwd", "a/../../x"] {
            let refused = judged(&archive(&[(BASE, "x"), (path, "x")]));
            assert!(matches!(refused, Err(PayloadError::Escapes { .. })), "{path}: {refused:?}");
        }
        assert!(stays_inside(Path::new("a/b"), Path::new("../../c")));
        assert!(!stays_inside(Path::new("a"), Path::new("../../c")));
    }
}
