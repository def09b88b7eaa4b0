//! Damaged copies of files. A file with a valid header must stay readable, every entry that journalctl still prints
//! must have the same bytes, and losses must be reported.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use landfall_journal::{ExportReader, Filter, Journal, JournalFile};

use crate::workshop::{OLD, Random, START, USUAL, Workshop, everything, read, sample};

/// Number of rounds for each kind of damage.
const ROUNDS: u64 = 25;

const ENTRIES: u64 = 400;

/// The samples have a dozen fields.
const MAX_FIELDS: usize = 64;

/// Returns the entries, with the number of copies of each.
fn entries(export: &[u8]) -> HashMap<Vec<u8>, usize> {
    let mut reader = ExportReader::new(export);
    let mut entries = HashMap::new();
    while let Some(record) = reader.next().unwrap() {
        // An entry with a damaged size includes the objects after it, and journalctl prints their fields as its own. So
        // does this reader, except for entries that no writer can produce.
        if record.fields().count() > MAX_FIELDS {
            continue;
        }
        let mut bytes = Vec::new();
        record.write_export(&mut bytes);
        *entries.entry(bytes).or_default() += 1;
    }
    entries
}

/// Returns the output of journalctl before it stops; an incomplete last entry does not count.
fn journalctl_as_far_as_it_gets(path: &Path) -> Vec<u8> {
    let file = format!("--file={}", path.display());
    let output = Command::new("journalctl").args(["--quiet", "--output=export", &file]).output().unwrap();
    let mut export = output.stdout;
    if !export.ends_with(b"\n\n") {
        let end = export.windows(2).rposition(|bytes| bytes == b"\n\n").map_or(0, |at| at + 2);
        export.truncate(end);
    }
    export
}

fn ours(path: &Path) -> (Vec<u8>, u64) {
    let mut journal = Journal::open([path]);
    let export = crate::workshop::drain(&mut journal);
    (export, journal.damage_count() + journal.problems().len() as u64)
}

/// Reads with filters and by field, which must survive the same damage.
fn exercise(path: &Path) {
    let Ok(mut file) = JournalFile::open(path) else { return };
    for filter in [Filter::unit("kubelet.service"), Filter::default().field("_PID", "3")] {
        file.set_filter(filter).unwrap();
        while file.next().unwrap().is_some() {}
    }
    file.values("_PID", |_| {}).unwrap();
}

fn lost(theirs: &HashMap<Vec<u8>, usize>, ours: &HashMap<Vec<u8>, usize>) -> Vec<String> {
    let missing = theirs.iter().filter(|(entry, count)| ours.get(*entry).is_none_or(|ours| ours < *count));
    missing.map(|(entry, _)| entry.escape_ascii().to_string()).collect()
}

/// The damaged part.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Blame {
    Objects,
    /// A header with a wrong number of entries cannot be distinguished from a correct one.
    Header,
}

/// Damages a file in many ways, one at a time; `how` gets its bytes, the end of its used part, and random numbers.
fn damage_and_compare(what: &str, blame: Blame, how: impl Fn(&mut Vec<u8>, usize, &mut Random)) {
    let Some(workshop) = Workshop::open() else { return };
    for (seed, make) in [(91, USUAL), (92, OLD)] {
        let whole = workshop.journal(&format!("{seed}.journal"), make, &sample(ENTRIES, seed, START));
        let bytes = read(&whole);
        let used = u64::from_le_bytes(bytes[136..144].try_into().unwrap()) as usize;
        let path = workshop.path("damaged.journal");
        let mut random = Random(seed);
        for round in 0..ROUNDS {
            let mut damaged = bytes.clone();
            how(&mut damaged, used, &mut random);
            fs::write(&path, &damaged).unwrap();
            let theirs = entries(&journalctl_as_far_as_it_gets(&path));
            let (export, reported) = ours(&path);
            let lost = lost(&theirs, &entries(&export));
            assert!(
                lost.is_empty(),
                "{what}, file {seed}, round {round}: {} entries lost: {}",
                lost.len(),
                lost[0]
            );
            let count = entries(&export).values().sum::<usize>() as u64;
            let told = reported > 0 || blame == Blame::Header;
            assert!(
                count == ENTRIES || told,
                "{what}, file {seed}, round {round}: {count} entries, and nothing told"
            );
            exercise(&path);
        }
    }
}

#[test]
fn altered_bytes_among_the_objects() {
    damage_and_compare("altered bytes", Blame::Objects, |bytes, used, random| {
        let objects = 5000.max(used / 2);
        for _ in 0..=random.below(20) {
            let at = objects + random.below((used - objects) as u64) as usize;
            bytes[at] = random.below(256) as u8;
        }
    });
}

#[test]
fn lost_sectors() {
    damage_and_compare("lost sectors", Blame::Objects, |bytes, used, random| {
        let at = (used / 2 + random.below((used / 2) as u64) as usize) & !511;
        bytes[at..at + 512].fill(0);
    });
}

#[test]
fn altered_heads_of_objects() {
    damage_and_compare("altered heads", Blame::Objects, |bytes, used, random| {
        let number =
            |bytes: &[u8], at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize;
        let mut objects = Vec::new();
        let mut offset = number(bytes, 88);
        while offset <= used {
            objects.push(offset);
            offset += number(bytes, offset + 8).next_multiple_of(8);
        }
        // The first two are the hash tables.
        for _ in 0..=random.below(4) {
            let object = objects[2 + random.below(objects.len() as u64 - 2) as usize];
            bytes[object + random.below(64) as usize] ^= 1 << random.below(8);
        }
    });
}

#[test]
fn altered_header() {
    damage_and_compare("altered header", Blame::Header, |bytes, _, random| {
        bytes[random.below(264) as usize] ^= 1 << random.below(8);
    });
}

#[test]
fn a_truncated_file_gives_what_lies_before_the_cut() {
    let Some(workshop) = Workshop::open() else { return };
    let path = workshop.journal("whole.journal", USUAL, &sample(ENTRIES, 93, START));
    let whole = everything(&[&path]);
    let bytes = read(&path);
    let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize;
    // From the first list of entries, directly after the first of them, to the last object.
    let (start, end) = (number(176), number(136));
    let mut last = usize::MAX;
    for percent in [99, 80, 50, 20] {
        let cut = workshop.path("cut.journal");
        fs::write(&cut, &bytes[..start + (end - start) * percent / 100]).unwrap();
        let (export, reported) = ours(&cut);
        let found = entries(&export);
        assert!(lost(&found, &entries(&whole)).is_empty(), "{percent} %: entries that were never written");
        let count = found.values().sum();
        assert!(count > 0 && count < last, "{percent} %: {count} entries");
        assert!(reported > 0);
        last = count;
    }
}

#[test]
fn entries_behind_a_broken_list_are_found_by_searching() {
    let Some(workshop) = Workshop::open() else { return };
    for (seed, make) in [(94, USUAL), (95, OLD)] {
        let path = workshop.journal(&format!("{seed}.journal"), make, &sample(ENTRIES, seed, START));
        let whole = everything(&[&path]);
        let mut bytes = read(&path);
        // The start of the list; its array gets an impossible type, so that the complete list is lost.
        let array = u64::from_le_bytes(bytes[176..184].try_into().unwrap()) as usize;
        bytes[array] = 99;
        fs::write(&path, &bytes).unwrap();
        let (export, reported) = ours(&path);
        assert!(reported > 0);
        assert!(export == whole, "{} of {} bytes", export.len(), whole.len());
    }
}
