//! Files and paths installed by distribution packages.

use std::fs;
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context, Result};
use flate2::Compression;
use flate2::write::GzEncoder;

/// Path of the binary in packages; units shipped for other installation methods contain another path.
const PROGRAM: &str = "/usr/bin/landfall";
const PROGRAM_ELSEWHERE: &str = "/usr/local/bin/landfall";

/// A file installed by a package.
pub(crate) struct Entry {
    /// Absolute path on the machine.
    pub(crate) path: String,
    pub(crate) mode: u32,
    pub(crate) content: Content,
}

pub(crate) enum Content {
    File(Vec<u8>),
    Link(&'static str),
}

/// Package metadata, independent of the format.
pub(crate) struct About {
    pub(crate) version: String,
    pub(crate) summary: &'static str,
    pub(crate) description: &'static str,
    pub(crate) licence: String,
    /// Seconds since 1970, derived from the source: builds are reproducible.
    pub(crate) time: u32,
}

/// Returns all files of a package, sorted by path, from a directory created by `cargo xtask dist`.
pub(crate) fn entries(dist: &Path) -> Result<Vec<Entry>> {
    let read = |name: &str| fs::read(dist.join(name)).with_context(|| format!("read `{name}`"));
    let file = |path: String, mode, content| Entry { path, mode, content: Content::File(content) };
    let mut entries = vec![
        file(PROGRAM.to_owned(), 0o755, read("landfall")?),
        // Under this name it is a kubectl plugin.
        Entry {
            path: "/usr/bin/kubectl-landfall".to_owned(),
            mode: 0o777,
            content: Content::Link("landfall"),
        },
    ];
    for (name, path) in [
        ("completions/landfall.bash", "/usr/share/bash-completion/completions/landfall"),
        ("completions/landfall.zsh", "/usr/share/zsh/site-functions/_landfall"),
        ("completions/landfall.fish", "/usr/share/fish/vendor_completions.d/landfall.fish"),
        ("LICENSE", "/usr/share/doc/landfall/copyright"),
        ("README.md", "/usr/share/doc/landfall/README.md"),
        ("CHANGELOG.md", "/usr/share/doc/landfall/CHANGELOG.md"),
    ] {
        entries.push(file(path.to_owned(), 0o644, read(name)?));
    }
    for folder in ["", "systemd", "man"] {
        for entry in fs::read_dir(dist.join(folder)).with_context(|| format!("read `{folder}`"))? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let content = || fs::read(entry.path()).with_context(|| format!("read `{name}`"));
            if name.ends_with(".service") {
                let text = String::from_utf8(content()?).with_context(|| format!("read `{name}`"))?;
                let text = text.replace(PROGRAM_ELSEWHERE, PROGRAM).into_bytes();
                entries.push(file(format!("/usr/lib/systemd/system/{name}"), 0o644, text));
            } else if name.ends_with(".1") {
                let path = format!("/usr/share/man/man1/{name}.gz");
                entries.push(file(path, 0o644, gzip(&content()?)?));
            }
        }
    }
    entries.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(entries)
}

/// Compresses without time and name in the header.
pub(crate) fn gzip(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::best());
    packed.write_all(bytes).context("pack")?;
    packed.finish().context("pack")
}
