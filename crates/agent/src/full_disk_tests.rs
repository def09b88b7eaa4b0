//! Delivery with a full, broken or read-only disk.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use jiff::Timestamp;
use landfall_diagnose::{Engine, RuleSet};
use landfall_durable::{Access, Disk, DraftFile, HostDisk, Lock};
use landfall_model::envelope::{Envelope, ReportId};
use landfall_model::identity::NodeIdentity;
use landfall_model::report::Report;

use crate::carrier::{Carrier, CarryError, deliver};
use crate::keeper::{Keeper, REPORT};
use crate::spool::Spool;

/// A disk that rejects all changes while it is stuck.
#[derive(Debug, Default)]
struct Sticky {
    stuck: AtomicBool,
}

/// A carrier that records every delivery.
#[derive(Default)]
struct Arrived(Vec<ReportId>);

impl Sticky {
    fn moves(&self) -> io::Result<()> {
        if self.stuck.load(Ordering::Relaxed) { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }
}

impl Disk for Sticky {
    fn read(&self, path: &Path, limit: u64) -> io::Result<Vec<u8>> {
        HostDisk.read(path, limit)
    }
    fn names(&self, dir: &Path) -> io::Result<Vec<OsString>> {
        HostDisk.names(dir)
    }
    fn open_draft(&self, path: &Path, access: Access) -> io::Result<Box<dyn DraftFile>> {
        self.moves().and_then(|()| HostDisk.open_draft(path, access))
    }
    fn sync_file(&self, path: &Path) -> io::Result<()> {
        HostDisk.sync_file(path)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.moves().and_then(|()| HostDisk.rename(from, to))
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        HostDisk.sync_dir(dir)
    }
    fn sync_all(&self) -> io::Result<()> {
        HostDisk.sync_all()
    }
    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.moves().and_then(|()| HostDisk.remove_file(path))
    }
    fn create_dir(&self, path: &Path, access: Access) -> io::Result<()> {
        HostDisk.create_dir(path, access)
    }
    fn lock(&self, path: &Path) -> io::Result<Box<dyn Lock>> {
        HostDisk.lock(path)
    }
}

impl Carrier for Arrived {
    fn name(&self) -> &'static str {
        "arrived"
    }

    fn carry(&mut self, id: ReportId, envelope: &[u8]) -> Result<(), CarryError> {
        assert_eq!(Envelope::parse(envelope).unwrap().message().unwrap().id, id);
        self.0.push(id);
        Ok(())
    }
}

fn report() -> Report {
    Engine::new(RuleSet::embedded().unwrap()).unwrap().open().finish()
}

fn node() -> NodeIdentity {
    NodeIdentity {
        hostname: "n1".to_owned(),
        machine_id: None,
        boot_id: Some("b1".to_owned()),
        os: None,
        architecture: None,
        provider_id: None,
    }
}

fn on_disk(folder: &Path) -> Vec<u8> {
    std::fs::read(folder.join(REPORT)).unwrap()
}

#[test]
fn a_report_that_cannot_be_written_is_kept_and_written_later() {
    let (folder, disk) = (tempfile::tempdir().unwrap(), Sticky::default());
    let mut keeper = Keeper::open(&disk, folder.path()).unwrap();
    let first = keeper.keep(node(), report(), Timestamp::now()).unwrap().clone();
    assert!(!keeper.is_behind() && keeper.unwritten().bytes().is_none());
    disk.stuck.store(true, Ordering::Relaxed);
    let second = keeper.keep(node(), report(), Timestamp::now()).unwrap().clone();
    assert!(keeper.is_behind() && keeper.settle().is_err());
    assert_eq!(on_disk(folder.path()), first.envelope);
    let asked = keeper.unwritten().bytes().unwrap();
    assert_eq!(asked, second.envelope, "who asks gets the news");
    assert!(!keeper.is_news(&node(), &report()), "it is not made again and again");
    disk.stuck.store(false, Ordering::Relaxed);
    keeper.settle().unwrap();
    assert!(!keeper.is_behind());
    assert_eq!(on_disk(folder.path()), second.envelope);
}

#[test]
fn a_number_the_disk_does_not_know_is_not_used_by_a_successor() {
    let (folder, disk) = (tempfile::tempdir().unwrap(), Sticky::default());
    let mut keeper = Keeper::open(&disk, folder.path()).unwrap();
    keeper.keep(node(), report(), Timestamp::now()).unwrap();
    disk.stuck.store(true, Ordering::Relaxed);
    let mut numbers = BTreeSet::new();
    for second in [1_700_000_000, 1_700_000_001, 1_700_000_100] {
        // The agent was killed before each iteration.
        let mut keeper = Keeper::open(&disk, folder.path()).unwrap();
        let now = Timestamp::from_second(second).unwrap();
        let sequence = keeper.keep(node(), report(), now).unwrap().message.sequence;
        assert!(numbers.last().is_none_or(|last| *last < sequence), "{sequence} after {numbers:?}");
        numbers.insert(sequence);
    }
}

#[test]
fn what_a_full_disk_does_not_take_is_brought_once() {
    let (folder, disk) = (tempfile::tempdir().unwrap(), Sticky::default());
    let mut keeper = Keeper::open(&disk, folder.path()).unwrap();
    let spool = Spool::open(&disk, &folder.path().join("spool")).unwrap();
    let first = keeper.keep(node(), report(), Timestamp::now()).unwrap().clone();
    spool.add(&first).unwrap();
    disk.stuck.store(true, Ordering::Relaxed);
    spool.add(&first).unwrap();
    let second = keeper.keep(node(), report(), Timestamp::now()).unwrap().clone();
    assert!(spool.add(&second).is_err());
    assert_eq!(spool.waiting().unwrap(), [first.message.id, second.message.id]);
    let mut arrived = Arrived::default();
    // The failed removal of the first report neither delays the second nor causes a redelivery.
    deliver(&mut arrived, &spool).unwrap();
    deliver(&mut arrived, &spool).unwrap();
    assert_eq!(arrived.0, [first.message.id, second.message.id]);
}

#[test]
fn memory_holds_the_newest_and_not_all() {
    let (folder, disk) = (tempfile::tempdir().unwrap(), Sticky::default());
    let mut keeper = Keeper::open(&disk, folder.path()).unwrap();
    let spool = Spool::open(&disk, &folder.path().join("spool")).unwrap();
    disk.stuck.store(true, Ordering::Relaxed);
    let report = report();
    let ids: Vec<ReportId> = (0..70)
        .map(|second| {
            let at = Timestamp::from_second(1_700_000_000 + second).unwrap();
            let envelope = keeper.keep(node(), report.clone(), at).unwrap();
            assert!(spool.add(envelope).is_err());
            envelope.message.id
        })
        .collect();
    assert_eq!(spool.waiting().unwrap(), ids[62..]);
}

/// The file is damaged, or another version wrote it in another format.
#[test]
fn a_last_report_that_cannot_be_read_does_not_make_numbers_begin_anew() {
    let folder = tempfile::tempdir().unwrap();
    for content in [b"garbage".to_vec(), vec![b' '; 5 << 20]] {
        std::fs::write(folder.path().join(REPORT), content).unwrap();
        let mut keeper = Keeper::open(&HostDisk, folder.path()).unwrap();
        let now = Timestamp::from_second(1_700_000_000).unwrap();
        let kept = &keeper.keep(node(), report(), now).unwrap().message;
        assert_eq!((kept.boot_number, kept.sequence), (Some(1_700_000_000), 1_700_000_000));
        assert_eq!(keeper.keep(node(), report(), now).unwrap().message.sequence, 1_700_000_001);
    }
}
