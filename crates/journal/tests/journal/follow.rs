//! A journal while it is being written.

use std::fs;
use std::io::Write;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use landfall_journal::{Filter, Journal, Seek};

use crate::workshop::{REMOTE, START, USUAL, Workshop, assert_same, configure, drain, journalctl, sample};

const PATIENCE: Duration = Duration::from_secs(60);

/// Follows the journal until `count` entries arrived.
fn follow(journal: &mut Journal, count: usize) -> Vec<u8> {
    let deadline = Instant::now() + PATIENCE;
    let mut export = Vec::new();
    let mut entries = 0;
    loop {
        while let Some(mut entry) = journal.next() {
            entry.write_export(&mut export).unwrap();
            entries += 1;
        }
        if entries >= count {
            assert_eq!(entries, count);
            return export;
        }
        let left = deadline.checked_duration_since(Instant::now());
        journal
            .wait(left.unwrap_or_else(|| panic!("{entries} of {count} entries within {PATIENCE:?}")))
            .unwrap();
    }
}

fn end(mut writer: Child) {
    drop(writer.stdin.take());
    assert!(writer.wait().unwrap().success());
}

#[test]
fn entries_are_given_as_they_are_written() {
    let Some(workshop) = Workshop::open() else { return };
    let folder = workshop.path("live");
    fs::create_dir(&folder).unwrap();
    let path = folder.join("live.journal");
    let mut writer = configure(&mut Command::new(REMOTE), USUAL, &path).spawn().unwrap();
    let mut pipe = writer.stdin.take().unwrap();

    // The directory is empty at first, so that the reader must also find the file.
    let mut journal = Journal::open([&folder]);
    let mut export = Vec::new();
    for part in 0..5 {
        pipe.write_all(&sample(300, 60 + part, START + part * 10_000_000)).unwrap();
        export.extend(follow(&mut journal, 300));
    }
    drop(pipe);
    end(writer);
    assert_same(&export, &journalctl(&[&format!("--file={}", path.display())]), "followed");
    journal.refresh();
    assert!(journal.next().is_none());
}

#[test]
fn following_from_the_end_gives_only_what_is_new_and_wanted() {
    let Some(workshop) = Workshop::open() else { return };
    let path = workshop.path("live.journal");
    let mut writer = configure(&mut Command::new(REMOTE), USUAL, &path).spawn().unwrap();
    let mut pipe = writer.stdin.take().unwrap();
    pipe.write_all(&sample(200, 71, START)).unwrap();
    let folder = path.parent().unwrap();
    follow(&mut Journal::open([folder]), 200);

    let mut all = Journal::open([folder]);
    all.seek(Seek::End);
    let mut wanted = Journal::open([folder]);
    // A value that the file does not contain yet.
    wanted.set_filter(Filter::default().field("MARK", "1"));
    wanted.seek(Seek::End);
    assert!(all.next().is_none() && wanted.next().is_none());

    pipe.write_all(format!("__REALTIME_TIMESTAMP={}\nMESSAGE=plain\n\n", START + 90_000_000).as_bytes())
        .unwrap();
    pipe.write_all(format!("__REALTIME_TIMESTAMP={}\nMARK=1\n\n", START + 91_000_000).as_bytes()).unwrap();
    assert!(String::from_utf8(follow(&mut all, 2)).unwrap().contains("\nMESSAGE=plain\n"));
    assert!(String::from_utf8(follow(&mut wanted, 1)).unwrap().contains("\nMARK=1\n"));
    drop(pipe);
    end(writer);
}

/// Tests a rotation: journald renames the file and creates a new one with the old name.
#[test]
fn rotation_loses_and_repeats_nothing() {
    let Some(workshop) = Workshop::open() else { return };
    let folder = workshop.path("journal");
    fs::create_dir(&folder).unwrap();
    let active = folder.join("system.journal");
    let first = workshop.journal("first.journal", USUAL, &sample(100, 81, START));
    fs::rename(first, &active).unwrap();
    let mut journal = Journal::open([&folder]);
    let mut export = drain(&mut journal);

    fs::rename(&active, folder.join("system@1.journal")).unwrap();
    let second = workshop.journal("second.journal", USUAL, &sample(100, 82, START + 10_000_000));
    fs::rename(second, &active).unwrap();
    assert!(journal.wait(PATIENCE).unwrap());
    export.extend(drain(&mut journal));
    assert_same(&export, &journalctl(&[&format!("--directory={}", folder.display())]), "rotated");

    fs::remove_file(folder.join("system@1.journal")).unwrap();
    journal.refresh();
    assert_eq!(journal.files(), 1, "a deleted file is closed once it is read");
}
