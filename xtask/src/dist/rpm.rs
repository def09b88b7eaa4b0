//! Package for Fedora, RHEL and their derivatives: an obsolete lead, a header of digests, a header of
//! metadata, and a compressed cpio archive.

use std::fmt::Write as _;

use anyhow::{Context, Result};
use sha2::{Digest as _, Sha256};

use super::package::{About, Content, Entry, gzip};

const ARCHITECTURE: &str = "x86_64";
const RELEASE: &str = "1";
/// Start of a header: magic, version, four reserved bytes.
const HEADER: [u8; 8] = [0x8e, 0xad, 0xe8, 0x01, 0, 0, 0, 0];
/// Tags at the start of both headers that state the size of the signed region.
const SEALED_SIGNATURES: u32 = 62;
const SEALED_FACTS: u32 = 63;
/// Digest algorithm in headers.
const SHA256: u32 = 8;
const REGULAR: u16 = 0o100_000;
const LINK: u16 = 0o120_000;
/// Flags for a file that is verified in all respects.
const VERIFY_ALL: u32 = u32::MAX;
/// Flag for documentation, as listed by `rpm -qd`.
const DOCUMENTATION: u32 = 1 << 1;
/// `name <= version` for the package format itself.
const NEEDS_FORMAT: u32 = 1 << 3 | 1 << 1 | 1 << 24;
const EQUAL: u32 = 1 << 3;

/// The value of a header tag.
enum Value {
    Text(String),
    /// Translatable text.
    Words(String),
    Texts(Vec<String>),
    Short(Vec<u16>),
    Number(Vec<u32>),
}

pub(crate) fn name(about: &About) -> String {
    format!("landfall-{}-{RELEASE}.{ARCHITECTURE}.rpm", about.version)
}

pub(crate) fn build(about: &About, entries: &[Entry]) -> Result<Vec<u8>> {
    let archive = archive(about, entries)?;
    let payload = gzip(&archive)?;
    let facts = header(SEALED_FACTS, facts(about, entries, &archive, &payload)?)?;
    let whole = number(facts.len() + payload.len())?;
    let signatures = header(
        SEALED_SIGNATURES,
        vec![
            (273, Value::Text(sha256(&facts))),
            (1000, Value::Number(vec![whole])),
            (1007, Value::Number(vec![number(archive.len())?])),
        ],
    )?;
    let mut package = lead(about);
    package.extend(&signatures);
    // The next header starts at a multiple of eight.
    package.resize(package.len().next_multiple_of(8), 0);
    package.extend(facts);
    package.extend(payload);
    Ok(package)
}

fn lead(about: &About) -> Vec<u8> {
    let mut lead = vec![0xed, 0xab, 0xee, 0xdb, 3, 0, 0, 0, 0, 1];
    let mut name = format!("landfall-{}-{RELEASE}", about.version).into_bytes();
    name.truncate(65);
    name.resize(66, 0);
    lead.extend(name);
    // Linux, and signatures in a header.
    lead.extend([0, 1, 0, 5]);
    lead.resize(96, 0);
    lead
}

fn facts(about: &About, entries: &[Entry], archive: &[u8], payload: &[u8]) -> Result<Vec<(u32, Value)>> {
    let text = |text: &str| Value::Text(text.to_owned());
    let split = |entry: &Entry| {
        let at = entry.path.rfind('/').map_or(0, |at| at + 1);
        (entry.path[..at].to_owned(), entry.path[at..].to_owned())
    };
    let mut folders: Vec<String> = entries.iter().map(|entry| split(entry).0).collect();
    folders.sort();
    folders.dedup();
    let place = |entry: &Entry| folders.iter().position(|folder| *folder == split(entry).0).unwrap_or(0);
    let each = |make: &dyn Fn(&Entry) -> u32| Value::Number(entries.iter().map(make).collect());
    let all = |make: &dyn Fn(&Entry) -> String| Value::Texts(entries.iter().map(make).collect());
    let sizes = entries.iter().map(|entry| number(bytes(entry).len())).collect::<Result<Vec<_>>>()?;
    let places = entries.iter().map(|entry| number(place(entry))).collect::<Result<Vec<_>>>()?;
    let inodes = (1..=entries.len()).map(number).collect::<Result<Vec<_>>>()?;
    let mode = |entry: &Entry| {
        let kind = if matches!(entry.content, Content::Link(_)) { LINK } else { REGULAR };
        u16::try_from(entry.mode).map(|mode| kind | mode).context("a mode has sixteen bits")
    };
    let modes = entries.iter().map(mode).collect::<Result<Vec<_>>>()?;
    let full = format!("{}-{RELEASE}", about.version);
    let needs =
        [("CompressedFileNames", "3.0.4-1"), ("FileDigests", "4.6.0-1"), ("PayloadFilesHavePrefix", "4.0-1")];
    Ok(vec![
        (100, Value::Texts(vec!["C".to_owned()])),
        (1000, text("landfall")),
        (1001, text(&about.version)),
        (1002, text(RELEASE)),
        (1004, Value::Words(about.summary.to_owned())),
        (1005, Value::Words(about.description.to_owned())),
        (1006, Value::Number(vec![about.time])),
        (1009, Value::Number(vec![sizes.iter().sum()])),
        (1014, text(&about.licence)),
        (1016, Value::Words("System Environment/Base".to_owned())),
        (1021, text("linux")),
        (1022, text(ARCHITECTURE)),
        (1028, Value::Number(sizes)),
        (1030, Value::Short(modes)),
        (1033, Value::Short(vec![0; entries.len()])),
        (1034, each(&|_| about.time)),
        (
            1035,
            all(&|entry| {
                if matches!(entry.content, Content::File(_)) { sha256(bytes(entry)) } else { String::new() }
            }),
        ),
        (
            1036,
            all(&|entry| {
                if let Content::Link(target) = entry.content { target.to_owned() } else { String::new() }
            }),
        ),
        (1037, each(&|entry| if entry.path.starts_with("/usr/share/doc/") { DOCUMENTATION } else { 0 })),
        (1039, all(&|_| "root".to_owned())),
        (1040, all(&|_| "root".to_owned())),
        (1045, each(&|_| VERIFY_ALL)),
        (1047, Value::Texts(vec!["landfall".to_owned()])),
        (1048, Value::Number(vec![NEEDS_FORMAT; needs.len()])),
        (1049, Value::Texts(needs.iter().map(|(name, _)| format!("rpmlib({name})")).collect())),
        (1050, Value::Texts(needs.iter().map(|(_, version)| (*version).to_owned()).collect())),
        (1095, each(&|_| 1)),
        (1096, Value::Number(inodes)),
        (1097, all(&|_| String::new())),
        (1112, Value::Number(vec![EQUAL])),
        (1113, Value::Texts(vec![full])),
        (1116, Value::Number(places)),
        (1117, all(&|entry| split(entry).1)),
        (1118, Value::Texts(folders)),
        (1124, text("cpio")),
        (1125, text("gzip")),
        (1126, text("9")),
        (5011, Value::Number(vec![SHA256])),
        (5092, Value::Texts(vec![sha256(payload)])),
        (5093, Value::Number(vec![SHA256])),
        (5097, Value::Texts(vec![sha256(archive)])),
    ])
}

/// Builds an index of tags and a store of their values, with the region tag `seal`.
fn header(seal: u32, tags: Vec<(u32, Value)>) -> Result<Vec<u8>> {
    let mut index = Vec::new();
    let mut store: Vec<u8> = Vec::new();
    let count = number(tags.len() + 1)?;
    for (tag, value) in tags {
        let width = value.width();
        store.resize(store.len().next_multiple_of(width), 0);
        let (kind, amount) = value.kind()?;
        for word in [tag, kind, number(store.len())?, amount] {
            index.extend(word.to_be_bytes());
        }
        value.put(&mut store);
    }
    // The region tag is first in the index and last in the store. It contains the negative length of the
    // index.
    let place = number(store.len())?;
    let back = 0_u32.wrapping_sub(count * 16);
    for word in [seal, 7, back, 16] {
        store.extend(word.to_be_bytes());
    }
    let mut header = HEADER.to_vec();
    header.extend(count.to_be_bytes());
    header.extend(number(store.len())?.to_be_bytes());
    for word in [seal, 7, place, 16] {
        header.extend(word.to_be_bytes());
    }
    header.extend(index);
    header.extend(store);
    Ok(header)
}

/// Builds a cpio archive in the `newc` format, with names that start with a dot.
fn archive(about: &About, entries: &[Entry]) -> Result<Vec<u8>> {
    let mut archive = Vec::new();
    for (place, entry) in (1..).zip(entries) {
        let kind = if matches!(entry.content, Content::Link(_)) { LINK } else { REGULAR };
        let mode = u32::from(kind) | entry.mode;
        file(&mut archive, &format!(".{}", entry.path), [place, mode, about.time], bytes(entry))?;
    }
    file(&mut archive, "TRAILER!!!", [0, 0, 0], b"")?;
    Ok(archive)
}

fn file(archive: &mut Vec<u8>, name: &str, [place, mode, time]: [u32; 3], content: &[u8]) -> Result<()> {
    let (size, length) = (number(content.len())?, number(name.len() + 1)?);
    let mut head = "070701".to_owned();
    // Inode, mode, user, group, links, time, size, two devices of two numbers each, name length, checksum.
    for word in [place, mode, 0, 0, 1, time, size, 0, 0, 0, 0, length, 0] {
        write!(head, "{word:08x}")?;
    }
    archive.extend(head.as_bytes());
    archive.extend(name.as_bytes());
    archive.push(0);
    archive.resize(archive.len().next_multiple_of(4), 0);
    archive.extend(content);
    archive.resize(archive.len().next_multiple_of(4), 0);
    Ok(())
}

fn bytes(entry: &Entry) -> &[u8] {
    match &entry.content {
        Content::File(bytes) => bytes,
        Content::Link(target) => target.as_bytes(),
    }
}

fn number(size: usize) -> Result<u32> {
    u32::try_from(size).context("a package of this kind holds less than 4 GiB")
}

fn sha256(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

// === impl Value ===

impl Value {
    fn kind(&self) -> Result<(u32, u32)> {
        Ok(match self {
            Self::Text(_) => (6, 1),
            Self::Words(_) => (9, 1),
            Self::Texts(texts) => (8, number(texts.len())?),
            Self::Short(numbers) => (3, number(numbers.len())?),
            Self::Number(numbers) => (4, number(numbers.len())?),
        })
    }

    /// Returns the alignment of values: their width.
    fn width(&self) -> usize {
        match self {
            Self::Short(_) => 2,
            Self::Number(_) => 4,
            _ => 1,
        }
    }

    fn put(&self, store: &mut Vec<u8>) {
        match self {
            Self::Text(text) | Self::Words(text) => store.extend(text.bytes().chain([0])),
            Self::Texts(texts) => store.extend(texts.iter().flat_map(|text| text.bytes().chain([0]))),
            Self::Short(numbers) => store.extend(numbers.iter().flat_map(|number| number.to_be_bytes())),
            Self::Number(numbers) => store.extend(numbers.iter().flat_map(|number| number.to_be_bytes())),
        }
    }
}
