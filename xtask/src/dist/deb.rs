//! Package for Debian and its derivatives: an `ar` archive of two compressed tar archives.

use std::fmt::Write as _;

use anyhow::{Context, Result};
use tar::{Builder, EntryType, Header};

use super::package::{About, Content, Entry, gzip};

const ARCHITECTURE: &str = "amd64";

pub(crate) fn name(about: &About) -> String {
    format!("landfall_{}_{ARCHITECTURE}.deb", about.version)
}

pub(crate) fn build(about: &About, entries: &[Entry]) -> Result<Vec<u8>> {
    let mut archive = b"!<arch>\n".to_vec();
    member(&mut archive, "debian-binary", about.time, b"2.0\n")?;
    member(&mut archive, "control.tar.gz", about.time, &gzip(&control(about, entries)?)?)?;
    member(&mut archive, "data.tar.gz", about.time, &gzip(&data(about, entries)?)?)?;
    Ok(archive)
}

/// Writes one file of an `ar` archive; files start at even offsets.
fn member(archive: &mut Vec<u8>, name: &str, time: u32, content: &[u8]) -> Result<()> {
    let mut head = String::new();
    writeln!(head, "{name:<16}{time:<12}{:<6}{:<6}{:<8}{:<10}`", 0, 0, "100644", content.len())?;
    archive.extend(head.as_bytes());
    archive.extend(content);
    if content.len() % 2 == 1 {
        archive.push(b'\n');
    }
    Ok(())
}

fn control(about: &About, entries: &[Entry]) -> Result<Vec<u8>> {
    let bytes: usize = entries.iter().map(|entry| entry.content.len()).sum();
    let control = format!(
        "Package: landfall\n\
         Version: {}\n\
         Architecture: {ARCHITECTURE}\n\
         Maintainer: The Landfall authors\n\
         Installed-Size: {}\n\
         Section: admin\n\
         Priority: optional\n\
         Description: {}\n {}\n",
        about.version,
        bytes.div_ceil(1024),
        about.summary,
        about.description.replace('\n', "\n "),
    );
    let mut tar = Builder::new(Vec::new());
    add(&mut tar, about, "./control", 0o644, &Content::File(control.into_bytes()))?;
    tar.into_inner().context("close the archive of control files")
}

fn data(about: &About, entries: &[Entry]) -> Result<Vec<u8>> {
    let mut tar = Builder::new(Vec::new());
    let mut folders: Vec<String> = Vec::new();
    for entry in entries {
        // Each directory once, before its content.
        for (at, _) in entry.path.match_indices('/') {
            let folder = format!(".{}/", &entry.path[..at]);
            if !folders.contains(&folder) {
                let mut head = head(about, 0o755, EntryType::Directory);
                head.set_size(0);
                tar.append_data(&mut head, &folder, &[][..]).context("add a folder")?;
                folders.push(folder);
            }
        }
        add(&mut tar, about, &format!(".{}", entry.path), entry.mode, &entry.content)?;
    }
    tar.into_inner().context("close the archive of files")
}

fn add(tar: &mut Builder<Vec<u8>>, about: &About, path: &str, mode: u32, content: &Content) -> Result<()> {
    match content {
        Content::File(bytes) => {
            let mut head = head(about, mode, EntryType::Regular);
            head.set_size(bytes.len() as u64);
            tar.append_data(&mut head, path, bytes.as_slice())
        }
        Content::Link(target) => {
            let mut head = head(about, mode, EntryType::Symlink);
            head.set_size(0);
            tar.append_link(&mut head, path, target)
        }
    }
    .with_context(|| format!("add `{path}`"))
}

fn head(about: &About, mode: u32, kind: EntryType) -> Header {
    let mut head = Header::new_gnu();
    head.set_entry_type(kind);
    head.set_mode(mode);
    head.set_mtime(u64::from(about.time));
    head.set_uid(0);
    head.set_gid(0);
    head
}

// === impl Content ===

impl Content {
    fn len(&self) -> usize {
        match self {
            Self::File(bytes) => bytes.len(),
            Self::Link(target) => target.len(),
        }
    }
}
