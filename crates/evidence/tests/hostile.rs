//! Archives built to exhaust their reader: time and memory are bounded, and the report's sources show the
//! limit.
#![expect(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test fails by panicking; what it makes is small"
)]

use std::fs;
use std::io::{self, Cursor, Read, Write as _};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use landfall_diagnose::{Engine, RuleSet};
use landfall_evidence::read::{self, Input, ReadError};
use landfall_model::report::Report;

const LOG: &[u8] = b"failed to run Kubelet: running with swap on is not supported, please disable swap\n";
/// Generous for loaded test machines; without bounds these inputs take hours.
const TIME: Duration = Duration::from_secs(300);
/// Limit for all tests of this file together, including the engine's own memory.
const MEMORY_KIB: u64 = 700 << 10;

/// Reads an input within the bounds of time and memory.
#[track_caller]
fn bounded(input: Input) -> Result<Report, ReadError> {
    let engine = Engine::new(RuleSet::embedded().unwrap()).unwrap();
    let started = Instant::now();
    let report = read::diagnose(&engine, vec![input], &|_| {});
    assert!(started.elapsed() < TIME, "it took {:?}", started.elapsed());
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(peak < MEMORY_KIB, "it took {} MiB", peak >> 10);
    report
}

#[track_caller]
fn assert_told(report: &Report, what: &str) {
    let told = report.sources.iter().filter_map(|source| source.error.as_deref());
    assert!(told.clone().any(|error| error.contains(what)), "{:?}", told.collect::<Vec<_>>());
}

#[track_caller]
fn assert_still_read(report: &Report) {
    assert_eq!(report.verdict.cause.as_ref().map(ToString::to_string).as_deref(), Some("swap-enabled"));
}

fn stream(reader: impl Read + 'static) -> Input {
    Input::Stream { name: "hostile".to_owned(), reader: Box::new(reader) }
}

fn header(name: &str, kind: u8, size: u64) -> [u8; 512] {
    let mut header = [0; 512];
    header[..name.len()].copy_from_slice(name.as_bytes());
    header[124..136].copy_from_slice(format!("{size:011o}\0").as_bytes());
    header[156] = kind;
    header[257..265].copy_from_slice(b"ustar  \0");
    header[148..156].fill(b' ');
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    header
}

fn log_entry(name: &str) -> Vec<u8> {
    let mut entry = header(name, b'0', LOG.len() as u64).to_vec();
    entry.extend_from_slice(LOG);
    entry.resize(entry.len().next_multiple_of(512), 0);
    entry
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn records_of_gigabytes_about_an_entry_are_not_held() {
    const SIZE: u64 = 3 << 30;
    for kind in [b'L', b'K', b'x', b'g'] {
        let record = Cursor::new(header("record", kind, SIZE)).chain(io::repeat(b'a').take(SIZE));
        let report = bounded(stream(record.chain(Cursor::new(log_entry("kubelet.log"))))).unwrap();
        assert_told(&report, "1 records about entries too large to be held, passed over");
        assert_still_read(&report);
    }
}

#[test]
fn records_without_end_are_refused() {
    let records = [header("record", b'L', 1).as_slice(), &[b'a'; 512]].concat();
    let mut archive = log_entry("kubelet.log");
    archive.extend(records.repeat(1000));
    let report = bounded(stream(Cursor::new(archive))).unwrap();
    assert_told(&report, "more records about it than any writer makes");
    assert_still_read(&report);
}

/// Repeats the same bytes.
struct Again {
    bytes: Vec<u8>,
    at: usize,
    times: u64,
}

impl Read for Again {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.at == self.bytes.len() {
            self.at = 0;
            self.times = self.times.saturating_sub(1);
        }
        if self.times == 0 {
            return Ok(0);
        }
        let count = out.len().min(self.bytes.len() - self.at);
        out[..count].copy_from_slice(&self.bytes[self.at..self.at + count]);
        self.at += count;
        Ok(count)
    }
}

#[test]
fn ten_million_entries_end_at_the_limit() {
    for (kind, told) in [(b'5', "more than 1000000 entries"), (b'0', "more than 20000 files")] {
        let entries = Again { bytes: header("same", kind, 0).to_vec(), at: 0, times: 10_000_000 };
        let report = bounded(stream(Cursor::new(log_entry("kubelet.log")).chain(entries))).unwrap();
        assert_told(&report, told);
        assert_still_read(&report);
    }
}

#[test]
fn a_stream_that_unpacks_without_end_is_cut() {
    let bomb = Again { bytes: gzip(&vec![b'a'; 16 << 20]), at: 0, times: u64::MAX };
    let report = bounded(stream(Cursor::new(gzip(LOG)).chain(bomb))).unwrap();
    assert_told(&report, "it unpacks to more than 200 times its size");
    assert_still_read(&report);
}

/// Each level contains the one below many times: a small file with tens of thousands of logs.
#[test]
fn archives_of_archives_end_at_the_limit() {
    let mut archive = gzip(&log_entry("kubelet.log"));
    for _ in 0..4 {
        let mut outer = Vec::new();
        for copy in 0..14 {
            outer.extend(header(&format!("copy-{copy}"), b'0', archive.len() as u64));
            outer.extend_from_slice(&archive);
            outer.resize(outer.len().next_multiple_of(512), 0);
        }
        archive = outer;
    }
    let report = bounded(stream(Cursor::new(archive))).unwrap();
    assert_told(&report, "more than 20000 files");
    assert_still_read(&report);
}

/// Creates a directory with the input in it.
fn file(bytes: &[u8]) -> (tempfile::TempDir, Input) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("hostile");
    fs::write(&path, bytes).unwrap();
    (folder, Input::Path(path))
}

/// Builds a zip with one compressed stream that the directory lists many times.
fn overlapping_zip(times: u16) -> Vec<u8> {
    let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(LOG).unwrap();
    encoder.write_all(&vec![b'a'; 64 << 20]).unwrap();
    let packed = encoder.finish().unwrap();
    let sizes = [(packed.len() as u32).to_le_bytes(), (64_u32 << 20).to_le_bytes()].concat();
    let mut zip = b"PK\x03\x04\x14\0\0\0\x08\0\0\0\0\0\0\0\0\0".to_vec();
    zip.extend_from_slice(&sizes);
    zip.extend(b"\x01\0\0\0a");
    zip.extend_from_slice(&packed);
    let start = zip.len() as u32;
    for number in 0..times {
        zip.extend(b"PK\x01\x02\x14\0\x14\0\0\0\x08\0\0\0\0\0\0\0\0\0");
        zip.extend_from_slice(&sizes);
        zip.extend(b"\x05\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
        zip.extend(format!("{number:05}").as_bytes());
    }
    let size = zip.len() as u32 - start;
    zip.extend(b"PK\x05\x06\0\0\0\0");
    zip.extend_from_slice(&[times.to_le_bytes(), times.to_le_bytes()].concat());
    zip.extend_from_slice(&[size.to_le_bytes(), start.to_le_bytes()].concat());
    zip.extend(b"\0\0");
    zip
}

#[test]
fn entries_of_a_zip_that_share_bytes_are_read_once() {
    let (_folder, input) = file(&overlapping_zip(60_000));
    let report = bounded(input).unwrap();
    assert_told(&report, "59999 entries that share their bytes with others, not read");
    assert_still_read(&report);
}

#[test]
fn a_hole_of_a_terabyte_is_cut_and_told() {
    for format in ["gnu", "posix"] {
        let folder = tempfile::tempdir().unwrap();
        let script = format!(
            "truncate -s 1T aa-hole; head -c 8192 /dev/zero | tr '\\0' x > bb-log; truncate -s 1T bb-log; \
             cp ../log cc.log; tar --sort=name --sparse --format={format} -cf ../a.tar ."
        );
        let inner = folder.path().join("in");
        fs::create_dir(&inner).unwrap();
        fs::write(folder.path().join("log"), LOG).unwrap();
        let status = Command::new("sh").args(["-euc", &script]).current_dir(&inner).status().unwrap();
        assert!(status.success(), "{script}");
        let report = bounded(Input::Path(folder.path().join("a.tar"))).unwrap();
        assert_told(&report, "2 files with holes, read as zeros");
        assert_told(&report, "incomplete: it unpacks to more than 200 times its size");
        assert_still_read(&report);
        let place: PathBuf = folder.path().join("a.tar:bb-log");
        assert!(report.sources.iter().any(|source| source.name == place.display().to_string()));
    }
}

#[test]
fn devices_are_told_and_not_opened() {
    let mut archive = log_entry("kubelet.log");
    archive.extend(header("dev/sda", b'4', 0));
    archive.extend(header("pipe", b'6', 0));
    let report = bounded(stream(Cursor::new(archive))).unwrap();
    assert_told(&report, "2 devices, pipes or unknown things, not read");
    assert_still_read(&report);
}
