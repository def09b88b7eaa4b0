//! Journals of a few kilobytes, for tests without systemd and as seeds for the fuzzer. systemd's own tools write at
//! least eight megabytes.

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;

use landfall_testkit::{Need, have};

use crate::hash::{jenkins64, siphash24};
use crate::{Filter, JournalFile, Seek};

const HEADER: usize = 264;
const BUCKETS: u64 = 7;
const FILE_ID: [u8; 16] = *b"a file of a test";
const START: u64 = 1_700_000_000_000_000;
const BOOT: &str = "_BOOT_ID=61207465737427732062206f6f742031";

struct Writer {
    bytes: Vec<u8>,
    compact: bool,
    keyed: bool,
    data: HashMap<Vec<u8>, usize>,
    names: HashMap<Vec<u8>, usize>,
    entries: Vec<usize>,
}

/// Returns a file with the given entries, each a list of `NAME=value`.
fn tiny(compact: bool, keyed: bool, entries: &[&[&str]]) -> Vec<u8> {
    let mut writer = Writer {
        bytes: vec![0; HEADER],
        compact,
        keyed,
        data: HashMap::new(),
        names: HashMap::new(),
        entries: Vec::new(),
    };
    let table = vec![0; BUCKETS as usize * 16];
    let data_table = writer.object(4, &table) + 16;
    let field_table = writer.object(5, &table) + 16;
    for (number, fields) in entries.iter().enumerate() {
        writer.entry(number as u64, fields, data_table, field_table);
    }
    let list = writer.entries.clone();
    let array = writer.array(&list);
    writer.finish(data_table, field_table, array)
}

// === impl Writer ===

impl Writer {
    fn object(&mut self, kind: u8, body: &[u8]) -> usize {
        let offset = self.bytes.len().next_multiple_of(8);
        self.bytes.resize(offset, 0);
        self.bytes.extend_from_slice(&[kind, 0, 0, 0, 0, 0, 0, 0]);
        self.bytes.extend_from_slice(&(16 + body.len() as u64).to_le_bytes());
        self.bytes.extend_from_slice(body);
        offset
    }

    fn put(&mut self, at: usize, number: usize) {
        self.bytes[at..at + 8].copy_from_slice(&(number as u64).to_le_bytes());
    }

    fn get(&self, at: usize) -> usize {
        u64::from_le_bytes(self.bytes[at..at + 8].try_into().unwrap()) as usize
    }

    fn hash(&self, bytes: &[u8]) -> u64 {
        if self.keyed { siphash24(bytes, FILE_ID) } else { jenkins64(bytes) }
    }

    /// Appends to a bucket's chain; the link is the second number of an object's body.
    fn link(&mut self, table: usize, hash: u64, offset: usize) {
        let bucket = table + (hash % BUCKETS) as usize * 16;
        match self.get(bucket + 8) {
            0 => self.put(bucket, offset),
            tail => self.put(tail + 24, offset),
        }
        self.put(bucket + 8, offset);
    }

    fn field(&mut self, field: &[u8], data_table: usize, field_table: usize) -> usize {
        if let Some(offset) = self.data.get(field) {
            return *offset;
        }
        let hash = self.hash(field);
        let head = if self.compact { 56 } else { 48 };
        let offset = self.object(1, &[&hash.to_le_bytes()[..], &vec![0; head - 8], field].concat());
        self.link(data_table, hash, offset);
        self.data.insert(field.to_vec(), offset);

        let name = field.split(|byte| *byte == b'=').next().unwrap();
        let hash = self.hash(name);
        let holder = self.names.get(name).copied().unwrap_or_else(|| {
            let holder = self.object(2, &[&hash.to_le_bytes()[..], &[0; 16], name].concat());
            self.link(field_table, hash, holder);
            self.names.insert(name.to_vec(), holder);
            holder
        });
        let older = self.get(holder + 32);
        self.put(offset + 32, older);
        self.put(holder + 32, offset);
        offset
    }

    fn entry(&mut self, number: u64, fields: &[&str], data_table: usize, field_table: usize) {
        let mut items: Vec<usize> = fields
            .iter()
            .chain([&BOOT])
            .map(|field| self.field(field.as_bytes(), data_table, field_table))
            .collect();
        items.sort_unstable();
        let mut body = Vec::new();
        for value in [number + 1, START + number * 1000, 5000 + number * 1000] {
            body.extend_from_slice(&value.to_le_bytes());
        }
        body.extend_from_slice(b"a test's b oot 1");
        body.extend_from_slice(
            &fields.iter().fold(0, |hash, field| hash ^ jenkins64(field.as_bytes())).to_le_bytes(),
        );
        for item in &items {
            if self.compact {
                body.extend_from_slice(&(*item as u32).to_le_bytes());
            } else {
                body.extend_from_slice(&(*item as u64).to_le_bytes());
                body.extend_from_slice(&self.get(item + 16).to_le_bytes());
            }
        }
        let offset = self.object(3, &body);
        self.entries.push(offset);
        for item in items {
            let count = self.get(item + 56);
            self.put(item + 56, count + 1);
            match count {
                0 => self.put(item + 40, offset),
                1 => {
                    let array = self.array(&[offset]);
                    self.put(item + 48, array);
                }
                _ => {
                    // One entry per array results in the longest possible chain.
                    let mut last = self.get(item + 48);
                    while self.get(last + 16) != 0 {
                        last = self.get(last + 16);
                    }
                    let array = self.array(&[offset]);
                    self.put(last + 16, array);
                }
            }
        }
    }

    fn array(&mut self, entries: &[usize]) -> usize {
        let mut body = vec![0; 8];
        for entry in entries {
            body.extend_from_slice(&(*entry as u64).to_le_bytes()[..if self.compact { 4 } else { 8 }]);
        }
        self.object(6, &body)
    }

    fn finish(mut self, data_table: usize, field_table: usize, array: usize) -> Vec<u8> {
        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
        self.bytes[..8].copy_from_slice(b"LPKSHHRH");
        self.bytes[12] = u8::from(self.compact) << 4 | u8::from(self.keyed) << 2;
        self.bytes[24..40].copy_from_slice(&FILE_ID);
        self.bytes[72..88].copy_from_slice(&FILE_ID);
        let (size, entries) = (self.bytes.len(), self.entries.len());
        let table = BUCKETS as usize * 16;
        let numbers = [
            HEADER,
            size - HEADER,
            data_table,
            table,
            field_table,
            table,
            array,
            0,
            entries,
            entries,
            1,
            array,
        ];
        for (index, number) in numbers.into_iter().enumerate() {
            self.put(88 + index * 8, number);
        }
        self.put(184, START as usize);
        self.put(192, START as usize + (entries - 1) * 1000);
        self.bytes
    }
}

fn seeds() -> Vec<(String, Vec<u8>)> {
    let entries: [&[&str]; 5] = [
        &["MESSAGE=started", "_PID=3", "_SYSTEMD_UNIT=ssh.service"],
        &["MESSAGE=two\nlines", "_PID=4", "_SYSTEMD_UNIT=ssh.service"],
        &["MESSAGE=third", "_PID=3", "_SYSTEMD_UNIT=kubelet.service"],
        &["MESSAGE=fourth", "_PID=3", "_SYSTEMD_UNIT=ssh.service"],
        &["MESSAGE=", "_PID=1", "UNIT=ssh.service"],
    ];
    let kinds = [(false, false), (false, true), (true, false), (true, true)];
    let name = |(compact, keyed)| {
        format!("{}-{}", if compact { "compact" } else { "regular" }, if keyed { "keyed" } else { "unkeyed" })
    };
    kinds.map(|kind| (name(kind), tiny(kind.0, kind.1, &entries))).to_vec()
}

fn export(file: &mut JournalFile<&[u8]>) -> Vec<u8> {
    let mut out = Vec::new();
    while let Some(mut entry) = file.next().unwrap() {
        entry.write_export(&mut out).unwrap();
    }
    out
}

fn messages(file: &mut JournalFile<&[u8]>) -> Vec<String> {
    let mut messages = Vec::new();
    while let Some(mut entry) = file.next().unwrap() {
        let field = entry.get("MESSAGE").unwrap().unwrap();
        messages.push(String::from_utf8(field.value().to_vec()).unwrap());
    }
    messages
}

#[test]
fn tiny_files_read_like_journalctl() {
    if !have(&[Need::Program("journalctl")]) {
        return;
    }
    let folder = tempfile::TempDir::new().unwrap();
    for (name, bytes) in seeds() {
        let path = folder.path().join("tiny.journal");
        std::fs::write(&path, &bytes).unwrap();
        for matches in [&[][..], &["_PID=3"], &["--unit=ssh.service"]] {
            let mut command = Command::new("journalctl");
            command.args(["-q", "-o", "export", "--file"]).arg(&path).args(matches);
            let output = command.output().unwrap();
            let mut file = JournalFile::new(bytes.as_slice()).unwrap();
            match matches {
                ["_PID=3"] => file.set_filter(Filter::default().field("_PID", "3")).unwrap(),
                [_] => file.set_filter(Filter::unit("ssh.service")).unwrap(),
                _ => {}
            }
            let (ours, theirs) = (export(&mut file), output.stdout);
            assert_eq!(
                ours.escape_ascii().to_string(),
                theirs.escape_ascii().to_string(),
                "{name} {matches:?}"
            );
            assert!(!ours.is_empty() && file.damage().count() == 0, "{:?}", file.damage());
        }
    }
}

#[test]
fn filters_and_seeks_work_without_systemd_at_hand() {
    for (name, bytes) in seeds() {
        let mut file = JournalFile::new(bytes.as_slice()).unwrap();
        assert_eq!(messages(&mut file), ["started", "two\nlines", "third", "fourth", ""], "{name}");
        file.seek(Seek::Time(START + 1001)).unwrap();
        assert_eq!(messages(&mut file), ["third", "fourth", ""], "{name}");
        file.set_filter(Filter::default().field("_PID", "3").field("_SYSTEMD_UNIT", "ssh.service")).unwrap();
        assert_eq!(messages(&mut file), ["started", "fourth"], "{name}");
        file.seek(Seek::Time(START + 1)).unwrap();
        assert_eq!(messages(&mut file), ["fourth"], "{name}");
        let mut pids = Vec::new();
        file.values("_PID", |pid| pids.push(pid.to_vec())).unwrap();
        assert_eq!(pids, [b"1", b"4", b"3"], "{name}");
    }
}

/// Tests every byte with every typical modification: no panic, no endless loop.
#[test]
fn no_altered_byte_harms() {
    for (_, bytes) in seeds() {
        for at in 0..bytes.len() {
            for change in [[0x01, 0x80], [0xff, bytes[at]]][at % 2] {
                let mut altered = bytes.clone();
                altered[at] ^= change;
                let Ok(mut file) = JournalFile::new(altered.as_slice()) else { continue };
                export(&mut file);
                file.set_filter(Filter::unit("ssh.service")).unwrap();
                export(&mut file);
                file.seek(Seek::Time(START + 2000)).unwrap();
                export(&mut file);
                file.values("_PID", |_| {}).unwrap();
            }
        }
    }
}

/// Checks the seeds of the fuzzer. `LANDFALL_UPDATE_CORPUS=1` writes them.
#[test]
fn the_fuzz_corpus_holds_these_files() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/journal_file");
    for (name, bytes) in seeds() {
        let path = folder.join(name);
        if std::env::var_os("LANDFALL_UPDATE_CORPUS").is_some() {
            std::fs::write(&path, &bytes).unwrap();
        }
        assert!(std::fs::read(&path).unwrap() == bytes, "{} differs", path.display());
    }
}
