//! Bodies of the `evidence_*` targets.

use std::io::{self, Cursor, Read};
use std::sync::LazyLock;

use landfall_diagnose::{Engine, RuleSet};
use landfall_evidence::console::Finder;
use landfall_evidence::read::evtx::{EventLog, chunk_text};
use landfall_evidence::read::kmsg;
use landfall_evidence::read::tar::Walk;
use landfall_evidence::read::utf16::{ByteOrder, Utf16Text};
use landfall_evidence::read::{self, Input, zip};

/// Maximum content read from holes, which claim any size for free.
const MAX_CONTENT: u64 = 1 << 20;

static ENGINE: LazyLock<Engine> = LazyLock::new(|| {
    let rules = RuleSet::embedded().expect("the rules are part of the program");
    Engine::new(rules).expect("the rules are part of the program")
});

/// Any bytes as a tar archive: at most one name per block, and no more plain content than bytes.
pub(crate) fn tar(bytes: &[u8]) {
    let mut walk = Walk::new(bytes);
    let mut entries = 0;
    while let Ok(Some(entry)) = walk.next_entry() {
        entries += 1;
        assert!(entry.name.len() <= bytes.len());
        let content = io::copy(&mut walk.by_ref().take(MAX_CONTENT), &mut io::sink());
        if entry.kind == landfall_evidence::read::tar::Kind::File {
            assert!(
                content.is_ok_and(|count| count <= bytes.len() as u64) || content_is_cut(bytes, &mut walk)
            );
        }
    }
    assert!(entries <= bytes.len() / 512);
}

/// Returns whether an entry that claims more content than exists ends with an error on each read.
fn content_is_cut(bytes: &[u8], walk: &mut Walk<&[u8]>) -> bool {
    bytes.len() as u64 > MAX_CONTENT || walk.read(&mut [0; 16]).is_err()
}

/// Any bytes as a zip archive: opened ranges are inside the archive, and overlapping ranges are entries.
pub(crate) fn zip(bytes: &[u8]) {
    let mut archive = Cursor::new(bytes);
    let Ok(directory) = zip::directory(&mut archive) else { return };
    let overlapping = zip::overlapping(&directory.bytes, 1000);
    let mut rest = &directory.bytes[..];
    let mut number = 0;
    while let Ok(Some(entry)) = zip::next_entry(&mut rest) {
        number += 1;
        if let Ok(mut packed) = zip::open(&mut archive, &entry) {
            let count = io::copy(&mut packed, &mut io::sink()).expect("memory does not fail to read");
            assert!(count <= bytes.len() as u64);
        }
    }
    assert!(overlapping.iter().all(|overlapping| *overlapping < number));
}

/// Any bytes as a chunk of an event log: bounded text in complete lines.
pub(crate) fn evtx(bytes: &[u8]) {
    let mut chunk = b"ElfChnk\0".to_vec();
    chunk.extend_from_slice(bytes);
    let mut text = Vec::new();
    chunk_text(&chunk, &mut text);
    assert!(text.is_empty() || text.ends_with(b"\n"));
    let log = EventLog::open([&[0; 4096], &chunk[..]].concat().as_slice().take(1 << 20)).map(|mut log| {
        let mut all = Vec::new();
        let _ = log.read_to_end(&mut all);
        all
    });
    assert!(log.is_ok());
}

/// Any bytes as a record of the kernel's ring buffer: one line, not longer than the record.
pub(crate) fn kmsg(bytes: &[u8]) {
    if let Some(record) = kmsg::parse(bytes) {
        assert!(record.text.len() < bytes.len() && !record.text.contains(&b'\n'));
    }
}

/// Any bytes as UTF-16: valid UTF-8, at most three bytes for two.
pub(crate) fn utf16(bytes: &[u8]) {
    for order in [ByteOrder::Little, ByteOrder::Big].into_iter().chain(ByteOrder::of(bytes)) {
        let mut text = String::new();
        Utf16Text::new(bytes, order).read_to_string(&mut text).expect("it is made of characters");
        assert!(text.len() <= bytes.len() / 2 * 3 + 6);
    }
}

/// Any bytes as a console with reports: a limited number, formatted as lines.
pub(crate) fn console(bytes: &[u8]) {
    let mut finder = Finder::default();
    for line in bytes.split(|byte| *byte == b'\n') {
        finder.line(line);
    }
    for record in finder.records() {
        let lines = record.lines();
        assert!(lines.is_empty() || lines.ends_with('\n'));
    }
}

/// Any bytes as any user input: recognized, decompressed, split into lines, scanned.
pub(crate) fn any(bytes: &[u8]) {
    let input = Input::Stream { name: "input".to_owned(), reader: Box::new(Cursor::new(bytes.to_vec())) };
    if let Ok(report) = read::diagnose(&ENGINE, vec![input], &|_| {}) {
        assert!(!report.sources.is_empty());
    }
}
