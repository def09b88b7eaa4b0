//! Several files as one journal.

use std::fs;
use std::path::Path;
use std::process::Command;

use landfall_journal::{Filter, Journal, Seek};

use crate::formats::cursors;
use crate::workshop::{OLD, START, USUAL, Workshop, assert_same, everything, journalctl, ours, sample};

const MACHINE: &str = "0123456789abcdef0123456789abcdef";

/// Creates files of three writers whose entries interleave, one of them rotated into two files, and a copy of a file.
fn fleet(workshop: &Workshop) -> Vec<std::path::PathBuf> {
    let stream = sample(900, 11, START);
    let second = sample(700, 12, START + 200_000);
    let third = sample(500, 13, START + 400_000);
    let first = workshop.journal("a.journal", USUAL, &stream);
    let copy = workshop.path("b.journal");
    fs::copy(&first, &copy).unwrap();
    vec![
        first,
        copy,
        workshop.journal("c.journal", OLD, &second),
        workshop.journal("d.journal", USUAL, &third),
    ]
}

#[test]
fn many_files_are_merged_like_journalctl_does_and_copies_are_left_out() {
    let Some(workshop) = Workshop::open() else { return };
    let paths = fleet(&workshop);
    let paths: Vec<&Path> = paths.iter().map(AsRef::as_ref).collect();
    let glob = format!("--file={}", workshop.path("*.journal").display());
    let export = everything(&paths);
    assert_same(&export, &journalctl(&[&glob]), "merged");
    assert_eq!(cursors(&export).len(), 900 + 700 + 500);

    let unit = Filter::default().field("_SYSTEMD_UNIT", "containerd.service");
    assert_same(
        &ours(&paths, &unit, Seek::Start),
        &journalctl(&[&glob, "_SYSTEMD_UNIT=containerd.service"]),
        "merged and filtered",
    );
    let time = START / 1_000_000 + 1;
    assert_same(
        &ours(&paths, &unit, Seek::Time(time * 1_000_000)),
        &journalctl(&[&glob, &format!("--since=@{time}"), "_SYSTEMD_UNIT=containerd.service"]),
        "merged, filtered, from a time on",
    );
    let cursor = cursors(&export)[1000];
    assert_same(
        &ours(&paths, &Filter::default(), Seek::At(cursor)),
        &journalctl(&[&glob, &format!("--cursor={cursor}")]),
        "merged, from a cursor on",
    );
    let after = cursors(&ours(&paths, &Filter::default(), Seek::After(cursor)));
    assert_eq!(after, cursors(&export)[1001..], "a cursor's copies in other files are passed as well");
}

#[test]
fn a_folder_is_read_as_journald_lays_it_out() {
    let Some(workshop) = Workshop::open() else { return };
    let folder = workshop.path("journal");
    let machine = folder.join(MACHINE);
    fs::create_dir_all(&machine).unwrap();
    fs::create_dir_all(folder.join("remote")).unwrap();
    for (name, seed) in
        [("system.journal", 21), ("system@1.journal", 22), ("user-1000.journal~", 23), ("notes.txt", 24)]
    {
        let made = workshop.journal("made.journal", USUAL, &sample(200, seed, START + seed * 1000));
        fs::rename(made, machine.join(name)).unwrap();
    }
    fs::copy(machine.join("notes.txt"), folder.join("remote").join("other.journal")).unwrap();
    let export = everything(&[&folder]);
    assert_eq!(cursors(&export).len(), 600);
    assert_same(&export, &journalctl(&[&format!("--directory={}", folder.display())]), "a folder");
}

#[test]
fn boots_are_listed_like_journalctl_lists_them() {
    let Some(workshop) = Workshop::open() else { return };
    let path = workshop.journal("boots.journal", USUAL, &sample(600, 31, START));
    let output = Command::new("journalctl")
        .arg(format!("--file={}", path.display()))
        .arg("--list-boots")
        .output()
        .unwrap();
    let listed = String::from_utf8(output.stdout).unwrap();
    let theirs: Vec<&str> = listed.split_whitespace().filter(|word| word.len() == 32).collect();
    let boots = Journal::open([&path]).boots();
    let ids: Vec<String> = boots.iter().map(|boot| boot.id.to_string()).collect();
    assert_eq!(ids, theirs);
    assert_eq!(ids.len(), 3);
    let times: Vec<u64> = cursors(&everything(&[&path])).iter().map(|cursor| cursor.realtime).collect();
    assert_eq!((boots[0].first, boots[2].last), (times[0], times[599]));
}

#[test]
fn what_cannot_be_read_is_told_and_the_rest_is_read() {
    let Some(workshop) = Workshop::open() else { return };
    let good = workshop.journal("good.journal", USUAL, &sample(50, 41, START));
    fs::write(workshop.path("text.journal"), "not a journal at all").unwrap();
    let mut future = fs::read(&good).unwrap();
    future[12] |= 0x40;
    fs::write(workshop.path("future.journal"), future).unwrap();
    let mut journal = Journal::open([
        good,
        workshop.path("text.journal"),
        workshop.path("future.journal"),
        workshop.path("gone.journal"),
    ]);
    let mut entries = 0;
    while journal.next().is_some() {
        entries += 1;
    }
    assert_eq!(entries, 50);
    let mut problems: Vec<_> = journal.problems().iter().map(|problem| problem.error.to_string()).collect();
    problems.retain(|problem| !problem.starts_with("could not open"));
    assert_eq!(
        problems,
        ["not a journal file", "the journal file uses features of a newer systemd (flags 0x40)"]
    );
    assert_eq!(journal.problems().len(), 3);
}
