use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};

use jiff::Timestamp;
use landfall_diagnose::{Engine, RuleSet};
use landfall_model::envelope::Envelope;
use landfall_model::identity::NodeIdentity;
use landfall_model::report::Report;
use landfall_steps::durable::HostDisk;

use super::*;
use crate::keeper::Keeper;

/// A carrier that fails as told and remembers what reached the other side.
#[derive(Clone, Default)]
struct Faulty {
    failures: Arc<Mutex<Vec<CarryError>>>,
    arrived: Arc<Mutex<BTreeMap<ReportId, Vec<u8>>>>,
}

impl Carrier for Faulty {
    fn name(&self) -> &'static str {
        "faulty"
    }

    fn carry(&mut self, id: ReportId, envelope: &[u8]) -> Result<(), CarryError> {
        if let Some(error) = self.failures.lock().unwrap().pop() {
            return Err(error);
        }
        self.arrived.lock().unwrap().insert(id, envelope.to_vec());
        Ok(())
    }
}

fn report() -> Report {
    Engine::new(RuleSet::embedded().unwrap()).unwrap().open().finish()
}

fn node(boot: &str) -> NodeIdentity {
    NodeIdentity {
        hostname: "n1".to_owned(),
        machine_id: None,
        boot_id: Some(boot.to_owned()),
        os: None,
        architecture: None,
        provider_id: None,
    }
}

fn later() -> CarryError {
    CarryError::Later(Box::new(io::Error::other("not now")))
}

fn never() -> CarryError {
    CarryError::Never(Box::new(io::Error::other("not this one")))
}

/// What every carrier promises.
fn honours_the_contract(carrier: &mut dyn Carrier, arrived: &dyn Fn() -> BTreeMap<ReportId, Vec<u8>>) {
    let folder = tempfile::tempdir().unwrap();
    let mut keeper = Keeper::open(&HostDisk, folder.path()).unwrap();
    let spool = Spool::open(&HostDisk, &folder.path().join("spool")).unwrap();
    let first = keeper.keep(node("b1"), report(), Timestamp::now()).unwrap().clone();
    spool.add(&first).unwrap();
    spool.add(&first).unwrap();
    let second = keeper.keep(node("b1"), report(), Timestamp::now()).unwrap().clone();
    spool.add(&second).unwrap();
    deliver(carrier, &spool).unwrap();
    assert!(spool.waiting().unwrap().is_empty(), "what was brought still waits");
    // The agent died before it could forget: it brings the same again.
    spool.add(&first).unwrap();
    deliver(carrier, &spool).unwrap();
    let found = arrived();
    assert_eq!(found.keys().copied().collect::<Vec<_>>(), [first.id, second.id]);
    for (bytes, sent) in found.values().zip([&first, &second]) {
        assert_eq!(serde_json::from_slice::<Envelope>(bytes).unwrap(), *sent, "it was changed on its way");
    }
}

#[test]
fn a_folder_honours_the_contract() {
    let folder = tempfile::tempdir().unwrap();
    let arrived = || {
        let files = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
        let id = |path: &std::path::Path| path.file_stem().unwrap().to_str().unwrap().parse().unwrap();
        files.map(|path| (id(&path), std::fs::read(&path).unwrap())).collect()
    };
    honours_the_contract(&mut Folder::new(folder.path().to_owned()), &arrived);
}

#[test]
fn what_cannot_be_brought_stays_and_what_is_refused_goes() {
    let faulty = Faulty::default();
    honours_the_contract(&mut faulty.clone(), &|| faulty.arrived.lock().unwrap().clone());
    let folder = tempfile::tempdir().unwrap();
    let mut keeper = Keeper::open(&HostDisk, folder.path()).unwrap();
    let spool = Spool::open(&HostDisk, &folder.path().join("spool")).unwrap();
    let first = keeper.keep(node("b1"), report(), Timestamp::now()).unwrap().clone();
    spool.add(&first).unwrap();
    faulty.failures.lock().unwrap().push(later());
    assert!(deliver(&mut faulty.clone(), &spool).is_err());
    assert_eq!(spool.waiting().unwrap(), [first.id]);
    faulty.failures.lock().unwrap().push(never());
    deliver(&mut faulty.clone(), &spool).unwrap();
    assert!(spool.waiting().unwrap().is_empty());
    assert!(!faulty.arrived.lock().unwrap().contains_key(&first.id));
}

#[test]
fn a_spool_keeps_the_newest() {
    let folder = tempfile::tempdir().unwrap();
    let mut keeper = Keeper::open(&HostDisk, folder.path()).unwrap();
    let spool = Spool::open(&HostDisk, &folder.path().join("spool")).unwrap();
    let mut ids = Vec::new();
    let report = report();
    for second in 0..70 {
        let at = Timestamp::from_second(1_700_000_000 + second).unwrap();
        let envelope = keeper.keep(node("b1"), report.clone(), at).unwrap();
        spool.add(envelope).unwrap();
        ids.push(envelope.id);
    }
    assert_eq!(spool.waiting().unwrap(), ids[6..]);
}

#[test]
fn the_last_report_outlives_the_process_and_counts_anew_in_each_boot() {
    let folder = tempfile::tempdir().unwrap();
    let mut keeper = Keeper::open(&HostDisk, folder.path()).unwrap();
    let first = keeper.keep(node("b1"), report(), Timestamp::now()).unwrap().clone();
    assert!(!keeper.is_news(&node("b1"), &report()));
    let mut keeper = Keeper::open(&HostDisk, folder.path()).unwrap();
    assert_eq!(keeper.last(), Some(&first));
    assert!(keeper.is_news(&node("b2"), &report()), "a new boot is news");
    let second = keeper.keep(node("b1"), report(), Timestamp::now()).unwrap().clone();
    assert_eq!((first.sequence, second.sequence), (1, 2));
    assert_eq!(keeper.keep(node("b2"), report(), Timestamp::now()).unwrap().sequence, 1);
    let (one, other) = (first.signature.unwrap(), second.signature.unwrap());
    assert_eq!(one.key, other.key, "the key did not outlive the process");
}

#[test]
fn pauses_grow_and_are_bounded() {
    for failed in [1, 5, 11, 1000] {
        let pause = pause_after(failed);
        assert!(pause >= FIRST_PAUSE / 2 && pause <= LONGEST_PAUSE, "{failed}: {pause:?}");
    }
}
