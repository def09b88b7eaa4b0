//! Windows event logs, built by a minimal writer in Windows' layout and cross-checked with python-evtx.
#![expect(clippy::cast_possible_truncation, reason = "a chunk has 64 KiB")]

use std::fs;
use std::process::Command;

use landfall_diagnose::{Engine, RuleSet};
use landfall_evidence::read::evtx::{CHUNK, chunk_text};
use landfall_evidence::read::{self, Input};
use landfall_testkit::{Need, have};

/// 2026-01-02T03:04:05Z in the units of Windows: tenths of microseconds since 1601.
const TIME: u64 = (1_767_323_045_000_000 + 11_644_473_600_000_000) * 10;
const SWAP: &str = "failed to run Kubelet: running with swap on is not supported, please disable swap";

/// A chunk under construction; its offsets are relative to its start.
struct Chunk(Vec<u8>);

impl Chunk {
    fn new() -> Self {
        let mut bytes = vec![0; 512];
        bytes[..8].copy_from_slice(b"ElfChnk\0");
        bytes[40..44].copy_from_slice(&128_u32.to_le_bytes());
        Self(bytes)
    }

    fn put(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    fn utf16(&mut self, text: &str) {
        let units: Vec<u8> = text.encode_utf16().flat_map(u16::to_le_bytes).collect();
        self.put(&((units.len() / 2) as u16).to_le_bytes());
        self.put(&units);
    }

    /// Writes a name that is new to the chunk.
    fn name(&mut self, name: &str) {
        let place = self.0.len() as u32 + 4;
        self.put(&place.to_le_bytes());
        self.put(&[0; 6]);
        self.utf16(name);
        self.put(&[0; 2]);
    }

    fn open(&mut self, name: &str, attribute: Option<(&str, &str)>) {
        self.put(&[if attribute.is_some() { 0x41 } else { 0x01 }, 0xff, 0xff]);
        self.put(&[0; 4]);
        self.name(name);
        if let Some((attribute, value)) = attribute {
            self.put(&[0; 4]);
            self.put(&[0x06]);
            self.name(attribute);
            self.text(value);
        }
        self.put(&[0x02]);
    }

    fn text(&mut self, text: &str) {
        self.put(&[0x05, 0x01]);
        self.utf16(text);
    }

    fn blank(&mut self, number: u16, kind: u8) {
        self.put(&[0x0e]);
        self.put(&number.to_le_bytes());
        self.put(&[kind]);
    }

    fn close(&mut self) {
        self.put(&[0x04]);
    }

    /// Writes a record with its template, or with that of another record; returns the template's offset.
    fn record(&mut self, template: Option<u32>, message: &str) -> u32 {
        let start = self.0.len();
        self.put(b"**\0\0");
        self.put(&[0; 4]);
        self.put(&1_u64.to_le_bytes());
        self.put(&TIME.to_le_bytes());
        self.put(&[0x0f, 1, 1, 0, 0x0c, 1, 0, 0, 0, 0]);
        let place = template.unwrap_or(self.0.len() as u32 + 4);
        self.put(&place.to_le_bytes());
        if template.is_none() {
            self.put(&[0; 20]);
            let length = self.0.len();
            self.put(&[0; 4]);
            self.template();
            let size = (self.0.len() - length - 4) as u32;
            self.0[length..length + 4].copy_from_slice(&size.to_le_bytes());
        }
        let units: Vec<u8> = message.encode_utf16().flat_map(u16::to_le_bytes).collect();
        self.put(&3_u32.to_le_bytes());
        for (length, kind) in [(2_u16, 0x06), (1, 0x04), (units.len() as u16, 0x01)] {
            self.put(&length.to_le_bytes());
            self.put(&[kind, 0]);
        }
        self.put(&7024_u16.to_le_bytes());
        self.put(&[2]);
        self.put(&units);
        self.put(&[0x00]);
        let size = (self.0.len() - start + 4) as u32;
        self.put(&size.to_le_bytes());
        self.0[start + 4..start + 8].copy_from_slice(&size.to_le_bytes());
        place
    }

    fn template(&mut self) {
        self.put(&[0x0f, 1, 1, 0]);
        self.open("Event", None);
        self.open("System", None);
        self.open("Provider", Some(("Name", "Service Control Manager")));
        self.close();
        self.open("EventID", None);
        self.blank(0, 0x06);
        self.close();
        self.open("Level", None);
        self.blank(1, 0x04);
        self.close();
        self.open("Computer", None);
        self.text("win-1");
        self.close();
        self.close();
        self.open("EventData", None);
        self.open("Data", Some(("Name", "param1")));
        self.text("kubelet");
        self.close();
        self.open("Data", None);
        self.blank(2, 0x01);
        self.close();
        self.close();
        self.close();
        self.put(&[0x00]);
    }

    fn finish(mut self) -> Vec<u8> {
        // Offset of the next record, and the numbers of the first and the last one.
        let next = self.0.len() as u32;
        self.0[48..52].copy_from_slice(&next.to_le_bytes());
        for number in [8, 24] {
            self.0[number..number + 8].copy_from_slice(&1_u64.to_le_bytes());
            self.0[number + 8..number + 16].copy_from_slice(&2_u64.to_le_bytes());
        }
        self.0.resize(CHUNK, 0);
        self.0
    }
}

fn log() -> Vec<u8> {
    let mut chunk = Chunk::new();
    let template = chunk.record(None, "the first\r\nof two lines");
    chunk.record(Some(template), SWAP);
    let mut file = vec![0; 4096];
    file[..8].copy_from_slice(b"ElfFile\0");
    file[32..36].copy_from_slice(&128_u32.to_le_bytes());
    file[36..40].copy_from_slice(&[1, 0, 3, 0]);
    file[40..44].copy_from_slice(&[0, 16, 1, 0]);
    file.extend(chunk.finish());
    file
}

#[test]
fn records_become_lines_with_time_source_and_level() {
    let mut text = Vec::new();
    assert_eq!(chunk_text(&log()[4096..], &mut text), 0);
    let head = "2026-01-02T03:04:05Z win-1 Service-Control-Manager[7024]: error:";
    assert_eq!(
        String::from_utf8(text).unwrap(),
        format!("{head} param1=kubelet; the first\n{head} of two lines\n{head} param1=kubelet; {SWAP}\n")
    );
}

/// Prints each record in our format, from python-evtx's output.
const OTHER_READER: &str = r#"
import sys, xml.etree.ElementTree as tree
from Evtx.Evtx import Evtx
space = "{http://schemas.microsoft.com/win/2004/08/events/event}"
def find(event, name):
    found = event.iter()
    return [element for element in found if element.tag in (name, space + name)]
with Evtx(sys.argv[1]) as log:
    for record in log.records():
        event = tree.fromstring(record.xml().encode())
        one = lambda name: find(event, name)[0].text
        level = {"1": "critical", "2": "error", "3": "warning", "4": "information"}[one("Level")]
        values = [(element.get("Name"), element.text) for element in find(event, "Data")]
        text = "; ".join(name + "=" + value if name else value for name, value in values)
        head = "%s %s %s[%s]: %s:" % (
            record.timestamp().strftime("%Y-%m-%dT%H:%M:%SZ"), one("Computer"),
            find(event, "Provider")[0].get("Name").replace(" ", "-"), one("EventID"), level)
        for line in text.splitlines():
            print(head, line)
"#;

#[test]
fn another_reader_reads_the_same() {
    if !have(&[Need::Program("/usr/lib/python3/dist-packages/Evtx/Evtx.py")]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("System.evtx");
    fs::write(&path, log()).unwrap();
    let output = Command::new("/usr/bin/python3").args(["-c", OTHER_READER]).arg(&path).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut ours = Vec::new();
    assert_eq!(chunk_text(&log()[4096..], &mut ours), 0);
    assert_eq!(String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&ours));
    assert_eq!(ours.iter().filter(|byte| **byte == b'\n').count(), 3);
}

#[test]
fn the_engine_reads_an_event_log() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("System.evtx");
    fs::write(&path, log()).unwrap();
    let engine = Engine::new(RuleSet::embedded().unwrap()).unwrap();
    let report = read::diagnose(&engine, vec![Input::Path(path)], &|_| {}).unwrap();
    assert_eq!(report.verdict.cause.unwrap().to_string(), "swap-enabled");
    let evidence = &report.findings[0].evidence[0];
    assert_eq!(evidence.time.unwrap().to_string(), "2026-01-02T03:04:05Z");
}

#[test]
fn a_damaged_log_is_told_and_the_rest_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("System.evtx");
    let mut bytes = log();
    // Damages the first record's own fragment; the second record still uses its template.
    let at = bytes.windows(4).position(|window| window == b"**\0\0").unwrap() + 24;
    bytes[at] = 0x7f;
    fs::write(&path, bytes).unwrap();
    let engine = Engine::new(RuleSet::embedded().unwrap()).unwrap();
    let report = read::diagnose(&engine, vec![Input::Path(path)], &|_| {}).unwrap();
    assert_eq!(report.verdict.cause.unwrap().to_string(), "swap-enabled");
    assert_eq!(
        report.sources[0].error.as_deref(),
        Some("incomplete: 1 records or parts of the log are damaged")
    );
}

/// Templates that are stored once but used by all records cause work out of proportion to the bytes.
#[test]
fn work_without_bytes_is_bounded() {
    let mut chunk = Chunk::new();
    let template = chunk.record(None, &"x".repeat(20_000));
    while chunk.0.len() < CHUNK - 200 {
        chunk.record(Some(template), "x");
    }
    let mut text = Vec::new();
    let damaged = chunk_text(&chunk.finish(), &mut text);
    assert!(text.len() < 16 << 20 && damaged == 0, "{} bytes", text.len());
}
