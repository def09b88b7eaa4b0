//! Every kind of file, completely and by filter, time and cursor.

use std::path::Path;

use landfall_journal::{Cursor, ExportReader, Filter, JournalFile, Seek, Source};
use landfall_testkit::{Need, have};

use crate::workshop::{
    Make, OLD, START, USUAL, Workshop, assert_same, everything, journalctl, ours, read, sample,
};

fn file(path: &Path) -> String {
    format!("--file={}", path.display())
}

fn kinds() -> impl Iterator<Item = Make> {
    (0..8).map(|bits| Make {
        compact: bits & 1 != 0,
        keyed_hash: bits & 2 != 0,
        compress: bits & 4 != 0,
        sealed: false,
    })
}

#[test]
fn every_kind_of_file_reads_like_journalctl() {
    let Some(workshop) = Workshop::open() else { return };
    for (number, make) in kinds().enumerate() {
        let path = workshop.journal(&format!("{number}.journal"), make, &sample(700, 1, START));
        let export = everything(&[&path]);
        assert_same(&export, &journalctl(&[&file(&path)]), &format!("{make:?}"));
        assert_eq!(cursors(&export).len(), 700);
    }
}

#[test]
fn a_sealed_file_reads_like_journalctl() {
    let Some(workshop) = Workshop::open() else { return };
    if !have(&[Need::Root, Need::Program("unshare")]) {
        return;
    }
    let path = workshop.journal("sealed.journal", Make { sealed: true, ..USUAL }, &sample(500, 2, START));
    assert!(JournalFile::open(&path).unwrap().header().sealed);
    assert_same(&everything(&[&path]), &journalctl(&[&file(&path)]), "sealed");
}

/// systemd 252 compresses with zstd only; the test recompresses files in place for the algorithms of older and newer
/// versions.
#[test]
fn fields_packed_with_xz_or_lz4_read_like_journalctl() {
    let Some(workshop) = Workshop::open() else { return };
    for compact in [false, true] {
        let make = Make { compact, compress: false, ..USUAL };
        let plain = workshop.journal(&format!("plain-{compact}.journal"), make, &sample(700, 3, START));
        for packing in [Packing::Xz, Packing::Lz4] {
            let mut bytes = read(&plain);
            assert!(repack(&mut bytes, compact, packing) > 10);
            let path = workshop.path("packed.journal");
            std::fs::write(&path, bytes).unwrap();
            assert_same(
                &everything(&[&path]),
                &journalctl(&[&file(&path)]),
                &format!("{packing:?} {compact}"),
            );
        }
    }
}

#[test]
fn filters_choose_what_journalctl_chooses() {
    let Some(workshop) = Workshop::open() else { return };
    for (name, make) in [("usual.journal", USUAL), ("old.journal", OLD)] {
        let path = workshop.journal(name, make, &sample(2000, 4, START));
        let boot = first_boot(&path);
        let field = |name, value: &str| Filter::default().field(name, value);
        let by_boot = format!("_BOOT_ID={boot}");
        let cases: Vec<(Filter, Vec<&str>)> = vec![
            (field("_SYSTEMD_UNIT", "kubelet.service"), vec!["_SYSTEMD_UNIT=kubelet.service"]),
            (field("_SYSTEMD_UNIT", "none.service"), vec!["_SYSTEMD_UNIT=none.service"]),
            (field("NEVER_SEEN", "1"), vec!["NEVER_SEEN=1"]),
            (
                field("_SYSTEMD_UNIT", "kubelet.service")
                    .field("_SYSTEMD_UNIT", "ssh.service")
                    .field("_PID", "3"),
                vec!["_SYSTEMD_UNIT=kubelet.service", "_SYSTEMD_UNIT=ssh.service", "_PID=3"],
            ),
            (
                field("_PID", "1").field("PRIORITY", "3").or().field("UNIT", "ssh.service"),
                vec!["_PID=1", "PRIORITY=3", "+", "UNIT=ssh.service"],
            ),
            (Filter::unit("kubelet.service"), vec!["--unit=kubelet.service"]),
            (Filter::boot(boot.parse().unwrap()), vec![&by_boot]),
            (
                Filter::unit("ssh.service").and(&Filter::boot(boot.parse().unwrap())),
                vec!["--unit=ssh.service", &by_boot],
            ),
        ];
        for (filter, arguments) in cases {
            let theirs = journalctl(&[&[file(&path).as_str()], arguments.as_slice()].concat());
            assert_same(&ours(&[&path], &filter, Seek::Start), &theirs, &format!("{name} {arguments:?}"));
        }
    }
}

#[test]
fn seeking_starts_where_journalctl_starts() {
    let Some(workshop) = Workshop::open() else { return };
    for (name, make) in [("usual.journal", USUAL), ("old.journal", OLD)] {
        let path = workshop.journal(name, make, &sample(2000, 5, START));
        let all = cursors(&everything(&[&path]));
        for filter in [Filter::default(), Filter::default().field("_SYSTEMD_UNIT", "ssh.service")] {
            let matching = if filter == Filter::default() { "" } else { "_SYSTEMD_UNIT=ssh.service" };
            let compare = |seek, argument: &str| {
                let arguments = [&file(&path), argument, matching];
                let arguments: Vec<_> =
                    arguments.into_iter().filter(|argument| !argument.is_empty()).collect();
                assert_same(
                    &ours(&[&path], &filter, seek),
                    &journalctl(&arguments),
                    &format!("{name} {arguments:?}"),
                );
            };
            for second in [0, 1, 2, 900] {
                let time = START / 1_000_000 + second;
                compare(Seek::Time(time * 1_000_000), &format!("--since=@{time}"));
            }
            for index in [0, 1, 777, 1998, 1999] {
                compare(Seek::At(all[index]), &format!("--cursor={}", all[index]));
            }
        }
        for index in [0, 1, 777, 1999] {
            let theirs = journalctl(&[&file(&path), &format!("--after-cursor={}", all[index])]);
            assert_same(
                &ours(&[&path], &Filter::default(), Seek::After(all[index])),
                &theirs,
                "after a cursor",
            );
        }
        assert_eq!(ours(&[&path], &Filter::default(), Seek::End), b"");
    }
}

#[test]
fn the_values_of_a_field_are_those_journalctl_lists() {
    let Some(workshop) = Workshop::open() else { return };
    for (name, make) in [("usual.journal", USUAL), ("old.journal", OLD)] {
        let path = workshop.journal(name, make, &sample(300, 6, START));
        for field in ["_SYSTEMD_UNIT", "_PID", "_BOOT_ID", "NEVER_SEEN"] {
            let output =
                std::process::Command::new("journalctl").args([&file(&path), "-F", field]).output().unwrap();
            let mut theirs: Vec<Vec<u8>> = output.stdout.lines_owned();
            let mut values = Vec::new();
            JournalFile::open(&path).unwrap().values(field, |value| values.push(value.to_vec())).unwrap();
            theirs.sort_unstable();
            values.sort_unstable();
            assert_eq!(values, theirs, "{name} {field}");
        }
    }
}

#[test]
fn an_entry_gives_its_fields_by_name_and_in_turn() {
    let Some(workshop) = Workshop::open() else { return };
    let path = workshop.journal("one.journal", USUAL, b"__REALTIME_TIMESTAMP=5\nA=1\nMESSAGE=hi\nA=2\n\n");
    let mut file = JournalFile::open(&path).unwrap();
    let mut entry = file.next().unwrap().unwrap();
    assert_eq!(entry.cursor().realtime, 5);
    assert_eq!(entry.get("MESSAGE").unwrap().unwrap().value(), b"hi");
    assert!(entry.get("NONE").unwrap().is_none());
    let mut fields = Vec::new();
    while let Some(field) = entry.next_field().unwrap() {
        fields.push(String::from_utf8(field.bytes().to_vec()).unwrap());
    }
    fields.retain(|field| !field.starts_with("_BOOT_ID="));
    fields.sort_unstable();
    assert_eq!(fields, ["A=1", "A=2", "MESSAGE=hi"]);
    assert!(file.next().unwrap().is_none());
}

pub(crate) fn cursors(export: &[u8]) -> Vec<Cursor> {
    let mut reader = ExportReader::new(export);
    let mut cursors = Vec::new();
    while let Some(record) = reader.next().unwrap() {
        cursors.push(record.cursor().unwrap());
    }
    cursors
}

fn first_boot(path: &Path) -> String {
    JournalFile::open(path).unwrap().next().unwrap().unwrap().cursor().boot_id.to_string()
}

trait Lines {
    fn lines_owned(&self) -> Vec<Vec<u8>>;
}

impl Lines for Vec<u8> {
    fn lines_owned(&self) -> Vec<Vec<u8>> {
        self.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).map(<[u8]>::to_vec).collect()
    }
}

#[derive(Clone, Copy, Debug)]
enum Packing {
    Xz = 1,
    Lz4 = 2,
}

/// Compresses the long fields of an uncompressed file in place, and returns their number. The resulting gaps between
/// objects do not matter: readers follow offsets.
fn repack(bytes: &mut [u8], compact: bool, packing: Packing) -> usize {
    const LONG: usize = 512;
    let number = |bytes: &[u8], at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let payload = if compact { 72 } else { 64 };
    let last = number(bytes, 136) as usize;
    let mut offset = number(bytes, 88) as usize;
    let mut packed = 0;
    while offset <= last {
        let size = number(bytes, offset + 8) as usize;
        if bytes[offset] == 1 && size > payload + LONG {
            let field = bytes[offset + payload..offset + size].to_vec();
            let small = pack(&field, packing);
            assert!(small.len() < field.len());
            bytes[offset + 1] |= packing as u8;
            bytes[offset + 8..offset + 16].copy_from_slice(&((payload + small.len()) as u64).to_le_bytes());
            bytes[offset + payload..offset + payload + small.len()].copy_from_slice(&small);
            packed += 1;
        }
        offset += size.next_multiple_of(8);
    }
    bytes[12] |= packing as u8;
    packed
}

fn pack(field: &[u8], packing: Packing) -> Vec<u8> {
    use std::io::Write;
    match packing {
        Packing::Xz => {
            let options = lzma_rust2::XzOptions::with_preset(0);
            let mut writer = lzma_rust2::XzWriter::new(Vec::new(), options).unwrap();
            writer.write_all(field).unwrap();
            writer.finish().unwrap()
        }
        Packing::Lz4 => [&(field.len() as u64).to_le_bytes()[..], &lz4_flex::block::compress(field)].concat(),
    }
}

/// A byte source in memory that counts the bytes read.
struct Counted {
    bytes: Vec<u8>,
    read: std::cell::Cell<usize>,
}

impl Source for &Counted {
    fn size(&self) -> std::io::Result<u64> {
        self.bytes.as_slice().size()
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> std::io::Result<usize> {
        let count = self.bytes.as_slice().read_at(buffer, offset)?;
        self.read.set(self.read.get() + count);
        Ok(count)
    }
}

#[test]
fn seeking_by_time_reads_a_small_part_of_the_file() {
    let Some(workshop) = Workshop::open() else { return };
    let path = workshop.journal("large.journal", USUAL, &sample(30_000, 17, START));
    let counted = Counted { bytes: read(&path), read: std::cell::Cell::default() };
    let mut file = JournalFile::new(&counted).unwrap();
    let last = file.header().last_realtime;
    for time in [START + (last - START) / 2, last - 1, last] {
        counted.read.set(0);
        file.seek(Seek::Time(time)).unwrap();
        let found = file.next().unwrap().unwrap().cursor().realtime;
        assert!(found >= time, "{found} {time}");
        let (read, size) = (counted.read.get(), counted.bytes.len());
        assert!(read < size / 4, "read {read} of {size} bytes to find one entry");
    }
}
