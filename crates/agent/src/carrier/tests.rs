use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

use jiff::Timestamp;
use landfall_diagnose::{Engine, RuleSet};
use landfall_evidence::console::Finder;
use landfall_model::envelope::Envelope;
use landfall_model::identity::NodeIdentity;
use landfall_model::report::Report;
use landfall_steps::durable::HostDisk;
use landfall_testkit::{FileServer, NatsServer, Serve, eventually, have};

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

/// A report, and the folder it is kept in.
fn kept() -> (tempfile::TempDir, Envelope) {
    let folder = tempfile::tempdir().unwrap();
    let mut keeper = Keeper::open(&HostDisk, folder.path()).unwrap();
    let envelope = keeper.keep(node("b1"), report(), Timestamp::now()).unwrap().clone();
    (folder, envelope)
}

/// The reports in a folder, `ID.json`.
fn stored(folder: &Path) -> BTreeMap<ReportId, Vec<u8>> {
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let id = |path: &Path| path.file_stem().unwrap().to_str().unwrap().parse().unwrap();
    files.map(|path| (id(&path), std::fs::read(&path).unwrap())).collect()
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
    honours_the_contract(&mut Folder::new(folder.path().to_owned()), &|| stored(folder.path()));
}

#[test]
fn a_console_honours_the_contract() {
    let folder = tempfile::tempdir().unwrap();
    let device = folder.path().join("ttyS0");
    std::fs::write(&device, "[    0.000000] Linux version 6.1\r\nlogin: ").unwrap();
    let arrived = || {
        let mut finder = Finder::default();
        for line in std::fs::read(&device).unwrap().split(|byte| *byte == b'\n') {
            finder.line(line);
        }
        let records = finder.records().into_iter();
        records.map(|found| (found.envelope.id, serde_json::to_vec(&found.envelope).unwrap())).collect()
    };
    honours_the_contract(&mut Console::new(device.clone()), &arrived);
}

#[test]
fn a_console_nobody_reads_is_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let device = folder.path().join("ttyS1");
    rustix::fs::mknodat(rustix::fs::CWD, &device, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0)
        .unwrap();
    let (_keeper, envelope) = kept();
    let brought = Console::new(device).carry(envelope.id, &serde_json::to_vec(&envelope).unwrap());
    assert!(matches!(brought, Err(CarryError::Later(_))), "{brought:?}");
}

/// Of a device that no driver has: who opens it is told something else.
#[test]
fn a_disk_is_no_console() {
    if !have(&[landfall_testkit::Need::Root]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let device = folder.path().join("sda");
    let kind = rustix::fs::FileType::BlockDevice;
    rustix::fs::mknodat(rustix::fs::CWD, &device, kind, rustix::fs::Mode::RWXU, 0).unwrap();
    let (_keeper, envelope) = kept();
    let brought = Console::new(device).carry(envelope.id, &serde_json::to_vec(&envelope).unwrap());
    let Err(CarryError::Later(error)) = brought else { panic!("{brought:?}") };
    let said = landfall_model::chain(&*error).to_string();
    assert!(said.contains("it is a disk and no console"), "{said}");
}

#[test]
fn an_object_store_honours_the_contract() {
    if !have(landfall_testkit::ObjectStore::NEEDS) {
        return;
    }
    let store = landfall_testkit::ObjectStore::start().unwrap();
    let folder = store.bucket().join("fleet/reports/n1");
    let authority = store.authority();
    let carrier = |credentials| {
        ObjectStore::new(store.location("fleet").parse().unwrap(), credentials, Some(&authority)).unwrap()
    };
    honours_the_contract(&mut carrier(store.credentials()), &|| stored(&folder));
    let (_keeper, envelope) = kept();
    let refused =
        carrier(store.wrong_credentials()).carry(envelope.id, &serde_json::to_vec(&envelope).unwrap());
    assert!(matches!(refused, Err(CarryError::Later(_))), "a right may be given: {refused:?}");
}

#[test]
fn events_honour_the_contract_and_say_where_the_report_is() {
    if !have(landfall_testkit::ObjectStore::NEEDS) {
        return;
    }
    let store = landfall_testkit::ObjectStore::start().unwrap();
    let receiver = FileServer::start().unwrap();
    let value = "Bearer tok".to_owned();
    receiver.serve("/events", Serve::Post { header: "authorization", value, refuse: 0 });
    let folder = tempfile::tempdir().unwrap();
    let (authority, token) = (folder.path().join("ca.crt"), folder.path().join("token"));
    std::fs::write(&authority, receiver.authority()).unwrap();
    std::fs::write(&token, "tok\n").unwrap();
    let bucket =
        ObjectStore::new(store.location("").parse().unwrap(), store.credentials(), Some(&store.authority()));
    let mut events =
        Events::new(&receiver.url("/events"), Some(&authority), Some(token), Some(bucket.unwrap())).unwrap();
    let reports = store.bucket().join("reports/n1");
    let arrived = || {
        let events = receiver.posted();
        let ids = events.iter().map(|event| {
            let event: serde_json::Value = serde_json::from_str(event).unwrap();
            assert_eq!(
                (&event["specversion"], &event["type"]),
                (&"1.0".into(), &"dev.landfall.report.v1".into())
            );
            assert_eq!(event["data"]["verdict"]["state"], "unknown");
            let id: ReportId = event["id"].as_str().unwrap().parse().unwrap();
            let reference = event["dataref"].as_str().unwrap();
            assert!(
                reference.starts_with("https://") && reference.ends_with(&format!("/reports/n1/{id}.json"))
            );
            id
        });
        let ids: std::collections::BTreeSet<ReportId> = ids.collect();
        let stored = stored(&reports);
        assert_eq!(ids, stored.keys().copied().collect(), "an event without its report");
        stored
    };
    honours_the_contract(&mut events, &arrived);
}

#[test]
fn nats_honours_the_contract_and_keeps_one_of_each() {
    if !have(NatsServer::NEEDS) {
        return;
    }
    let server = NatsServer::start().unwrap();
    let authority = server.authority();
    let nats =
        |login| Nats::new(&server.url(), "landfall.reports", Some(&authority), None, Some(login)).unwrap();
    let (_keeper, envelope) = kept();
    let bytes = serde_json::to_vec(&envelope).unwrap();
    for (login, why) in [(server.login(), "no stream"), (server.wrong_login(), "authorization")] {
        let refused = nats(login).carry(envelope.id, &bytes);
        let Err(CarryError::Later(reason)) = refused else { panic!("{refused:?}") };
        assert!(reason.to_string().to_lowercase().contains(why), "{reason}");
    }
    server.create_stream("REPORTS", "landfall.reports.>").unwrap();
    let arrived = || {
        let messages = server.messages("REPORTS").unwrap();
        assert_eq!(messages.len(), 2, "the stream keeps one of each");
        assert!(messages.iter().all(|(subject, _)| subject == "landfall.reports.n1"));
        let id = |bytes: &[u8]| serde_json::from_slice::<Envelope>(bytes).unwrap().id;
        messages.into_iter().map(|(_, bytes)| (id(&bytes), bytes)).collect()
    };
    honours_the_contract(&mut nats(server.login()), &arrived);
}

#[test]
fn a_carrier_that_fails_does_not_hold_up_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let broken = Faulty::default();
    broken.failures.lock().unwrap().extend((0..1000).map(|_| later()));
    let good = Faulty::default();
    let (_keeper, envelope) = kept();
    std::thread::scope(|scope| {
        let mut telling = Vec::new();
        for (name, mut carrier) in [("broken", broken.clone()), ("good", good.clone())] {
            let spool = Spool::open(&HostDisk, &folder.path().join(name)).unwrap();
            let (tell, news) = std::sync::mpsc::sync_channel(1);
            spool.add(&envelope).unwrap();
            scope.spawn(move || carry(&mut carrier, &spool, &news));
            telling.push(tell);
        }
        let arrived = || good.arrived.lock().unwrap().contains_key(&envelope.id).then_some(());
        eventually("the good one to bring it", Duration::from_secs(60), arrived).unwrap();
    });
    let spool = Spool::open(&HostDisk, &folder.path().join("broken")).unwrap();
    assert_eq!(spool.waiting().unwrap(), [envelope.id]);
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
