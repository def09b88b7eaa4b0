use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

use jiff::Timestamp;
use landfall_diagnose::{Engine, RuleSet};
use landfall_durable::HostDisk;
use landfall_evidence::console::Finder;
use landfall_model::identity::NodeIdentity;
use landfall_model::report::Report;
use landfall_testkit::{FileServer, NatsServer, ObjectServer, Serve, eventually, have};

use super::*;
use crate::keeper::{Keeper, SignedReport};

/// A carrier that fails with the given errors and records the delivered reports.
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

/// Returns a stored report and its directory.
fn kept() -> (tempfile::TempDir, SignedReport) {
    let folder = tempfile::tempdir().unwrap();
    let mut keeper = Keeper::open(&HostDisk, folder.path()).unwrap();
    let envelope = keeper.keep(node("b1"), report(), Timestamp::now()).unwrap().clone();
    (folder, envelope)
}

/// Returns the reports in a directory of `ID.json` files.
fn stored(folder: &Path) -> BTreeMap<ReportId, Vec<u8>> {
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
    reports(files.map(|path| (name(&path), std::fs::read(&path).unwrap())))
}

/// Maps files to report IDs by their names.
fn reports(files: impl IntoIterator<Item = (String, Vec<u8>)>) -> BTreeMap<ReportId, Vec<u8>> {
    let id = |name: &str| name.strip_suffix(".json").unwrap().parse().unwrap();
    files.into_iter().map(|(name, bytes)| (id(&name), bytes)).collect()
}

fn later() -> CarryError {
    CarryError::Later(Box::new(io::Error::other("not now")))
}

fn never() -> CarryError {
    CarryError::Never(Box::new(io::Error::other("not this one")))
}

/// Tests the contract of every carrier.
fn honours_the_contract(carrier: &mut dyn Carrier, arrived: &dyn Fn() -> BTreeMap<ReportId, Vec<u8>>) {
    let sent = brings(carrier);
    let found = arrived();
    assert_eq!(found.keys().copied().collect::<Vec<_>>(), [sent[0].message.id, sent[1].message.id]);
    for (bytes, sent) in found.values().zip(&sent) {
        assert_eq!(*bytes, sent.envelope, "it was changed on its way");
    }
}

/// Delivers two reports in order, and the first one twice.
fn brings(carrier: &mut dyn Carrier) -> [SignedReport; 2] {
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
    // The agent was killed before it removed the report from the spool, so it delivers it again.
    spool.add(&first).unwrap();
    deliver(carrier, &spool).unwrap();
    assert!(spool.waiting().unwrap().is_empty(), "what was brought again still waits");
    [first, second]
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
        records.map(|found| (found.message.id, serde_json::to_vec(&found.envelope).unwrap())).collect()
    };
    honours_the_contract(&mut Console::new(device.clone()), &arrived);
}

/// A kernel terminal: it translates line ends and accepts a little data at a time.
#[test]
fn a_terminal_honours_the_contract() {
    use std::io::Read as _;
    let master =
        rustix::pty::openpt(rustix::pty::OpenptFlags::RDWR | rustix::pty::OpenptFlags::NOCTTY).unwrap();
    rustix::pty::grantpt(&master).unwrap();
    rustix::pty::unlockpt(&master).unwrap();
    let name = rustix::pty::ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
    // A terminal yields data only while it is open.
    let kept_open = std::fs::OpenOptions::new().read(true).write(true).open(&name).unwrap();
    let screen = Arc::new(Mutex::new(Vec::new()));
    let shown = Arc::clone(&screen);
    let reader = std::thread::spawn(move || {
        let (mut master, mut piece) = (std::fs::File::from(master), [0; 512]);
        while let Ok(count @ 1..) = master.read(&mut piece) {
            shown.lock().unwrap().extend_from_slice(&piece[..count]);
        }
    });
    let [first, second] = brings(&mut Console::new(name.into()));
    drop(kept_open);
    reader.join().unwrap();
    let screen = screen.lock().unwrap().clone();
    assert!(screen.windows(2).any(|end| end == b"\r\n"), "it is no terminal");
    let mut finder = Finder::default();
    screen.split(|byte| *byte == b'\n').for_each(|line| finder.line(line));
    let found: BTreeMap<ReportId, ReportMessage> =
        finder.records().into_iter().map(|record| (record.message.id, record.message)).collect();
    assert_eq!(found.into_values().collect::<Vec<_>>(), [first.message, second.message]);
}

#[test]
fn a_console_nobody_reads_is_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let device = folder.path().join("ttyS1");
    rustix::fs::mknodat(rustix::fs::CWD, &device, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0)
        .unwrap();
    let (_keeper, envelope) = kept();
    let brought = Console::new(device).carry(envelope.message.id, &envelope.envelope);
    assert!(matches!(brought, Err(CarryError::Later(_))), "{brought:?}");
}

/// Uses a device number without a driver; opening it would give another error.
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
    let brought = Console::new(device).carry(envelope.message.id, &envelope.envelope);
    let Err(CarryError::Later(error)) = brought else { panic!("{brought:?}") };
    let said = landfall_model::chain(&*error).to_string();
    assert!(said.contains("it is a disk and no console"), "{said}");
}

#[test]
fn an_object_store_honours_the_contract() {
    for server in ObjectServer::ALL.into_iter().filter(|server| have(server.needs())) {
        let store = server.start().unwrap();
        let authority = store.authority();
        let location = store.location("fleet");
        let carrier = |credentials| {
            ObjectStore::new(location.parse().unwrap(), credentials, Some(authority.clone())).unwrap()
        };
        let arrived = || reports(store.objects("fleet/reports/n1").unwrap());
        honours_the_contract(&mut carrier(store.credentials()), &arrived);
        let (_keeper, envelope) = kept();
        for credentials in store.wrong_credentials().unwrap() {
            let refused = carrier(credentials).carry(envelope.message.id, &envelope.envelope);
            assert!(matches!(refused, Err(CarryError::Later(_))), "a right may be given: {refused:?}");
        }
    }
}

#[test]
fn events_honour_the_contract_and_say_where_the_report_is() {
    for server in ObjectServer::ALL.into_iter().filter(|server| have(server.needs())) {
        let store = server.start().unwrap();
        let receiver = FileServer::start().unwrap();
        let value = "Bearer tok".to_owned();
        receiver.serve("/events", Serve::Post { header: "authorization", value, refuse: 0 });
        let folder = tempfile::tempdir().unwrap();
        let (authority, token) = (folder.path().join("ca.crt"), folder.path().join("token"));
        std::fs::write(&authority, receiver.authority()).unwrap();
        std::fs::write(&token, "tok\n").unwrap();
        // For Azure, the credentials are query parameters, which must not appear in an event.
        let credentials = store.all_credentials().unwrap().pop().unwrap();
        let authority_of_store = store.authority();
        let bucket =
            ObjectStore::new(store.location("").parse().unwrap(), credentials, Some(authority_of_store));
        let url = receiver.url("/events");
        let mut events = Events::new(&url, Some(authority), Some(token), Some(bucket.unwrap())).unwrap();
        let arrived = || {
            let ids: BTreeSet<ReportId> = receiver.posted().iter().map(|event| announced(event)).collect();
            let stored = reports(store.objects("reports/n1").unwrap());
            assert_eq!(ids, stored.keys().copied().collect(), "an event without its report");
            stored
        };
        honours_the_contract(&mut events, &arrived);
    }
}

/// Returns the ID of the report that an event references.
fn announced(event: &str) -> ReportId {
    let event: serde_json::Value = serde_json::from_str(event).unwrap();
    assert_eq!((&event["specversion"], &event["type"]), (&"1.0".into(), &"dev.landfall.report.v1".into()));
    assert_eq!(event["data"]["verdict"]["state"], "unknown");
    let id: ReportId = event["id"].as_str().unwrap().parse().unwrap();
    let reference = event["dataref"].as_str().unwrap();
    assert!(reference.starts_with("https://") && reference.ends_with(&format!("/reports/n1/{id}.json")));
    id
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
    let (id, bytes) = (envelope.message.id, envelope.envelope);
    for (login, why) in [(server.login(), "no stream"), (server.wrong_login(), "authorization")] {
        let refused = nats(login).carry(id, &bytes);
        let Err(CarryError::Later(reason)) = refused else { panic!("{refused:?}") };
        assert!(reason.to_string().to_lowercase().contains(why), "{reason}");
    }
    server.create_stream("REPORTS", "landfall.reports.>").unwrap();
    let arrived = || {
        let messages = server.messages("REPORTS").unwrap();
        assert_eq!(messages.len(), 2, "the stream keeps one of each");
        assert!(messages.iter().all(|(subject, _)| subject == "landfall.reports.n1"));
        let id = |bytes: &[u8]| message(bytes).unwrap().id;
        messages.into_iter().map(|(_, bytes)| (id(&bytes), bytes)).collect()
    };
    honours_the_contract(&mut nats(server.login()), &arrived);
}

#[test]
fn a_hub_honours_the_contract_and_its_authority_may_change() {
    let receiver = FileServer::start().unwrap();
    let value = "Bearer tok".to_owned();
    receiver.serve("/api/v1/reports", Serve::Post { header: "authorization", value, refuse: 0 });
    let folder = tempfile::tempdir().unwrap();
    let (authority, token) = (folder.path().join("ca.crt"), folder.path().join("token"));
    std::fs::write(&token, "old\n").unwrap();
    let other = landfall_pki::Authority::new("another", 2).unwrap();
    std::fs::write(&authority, other.certificate()).unwrap();
    let mut hub = Hub::new(&receiver.url(""), Some(&authority), Some(token.clone()), None).unwrap();
    let (_keeper, envelope) = kept();
    let (id, bytes) = (envelope.message.id, envelope.envelope);
    let mut refused = |what: &str| {
        let brought = hub.carry(id, &bytes);
        assert!(matches!(brought, Err(CarryError::Later(_))), "{what}: {brought:?}");
    };
    refused("a stranger");
    // The CA file is renewed between deliveries, and then the token.
    std::fs::write(&authority, "half a fi").unwrap();
    refused("what cannot be read changes nothing");
    std::fs::write(&authority, receiver.authority()).unwrap();
    refused("a token that is not good");
    std::fs::write(&token, "tok\n").unwrap();
    let arrived = || {
        let posted = receiver.posted();
        let id = |bytes: &str| message(bytes.as_bytes()).unwrap().id;
        posted.into_iter().map(|body| (id(&body), body.into_bytes())).collect()
    };
    honours_the_contract(&mut hub, &arrived);
}

#[test]
fn nats_is_believed_for_an_authority_that_changes() {
    if !have(NatsServer::NEEDS) {
        return;
    }
    let server = NatsServer::start().unwrap();
    server.create_stream("REPORTS", "landfall.reports.>").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let authority = folder.path().join("ca.crt");
    std::fs::write(&authority, landfall_pki::Authority::new("another", 2).unwrap().certificate()).unwrap();
    let login = Some(server.login());
    let mut nats = Nats::new(&server.url(), "landfall.reports", Some(&authority), None, login).unwrap();
    let (_keeper, envelope) = kept();
    let (id, bytes) = (envelope.message.id, envelope.envelope);
    assert!(nats.carry(id, &bytes).is_err(), "a stranger");
    std::fs::copy(server.authority(), &authority).unwrap();
    nats.carry(id, &bytes).unwrap();
}

/// A peer stores only the last report. Trust is configured by files on both sides, and all of them can be
/// replaced.
#[test]
fn a_neighbour_honours_the_contract_and_certificates_may_change() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        std::fs::write(folder.path().join(name), text).unwrap();
        folder.path().join(name)
    };
    let issue = |authority: &landfall_pki::Authority, node: &str| {
        let leaf = landfall_pki::Leaf::new(format!("system:node:{node}"), landfall_pki::Purpose::Call);
        let issued = authority.issue(&leaf.organization("system:nodes")).unwrap();
        (file("node.crt", &issued.certificate), file("node.key", issued.key.expose()))
    };
    let (authority, other) =
        ["cluster", "another"].map(|name| landfall_pki::Authority::new(name, 2).unwrap()).into();
    let own = landfall_pki::Leaf::new("agent", landfall_pki::Purpose::Serve).names(["127.0.0.1"]);
    let own = authority.issue(&own).unwrap();
    let serve = crate::Serve {
        address: "127.0.0.1:0".parse().unwrap(),
        certificate: crate::CertificateFiles {
            certificate: file("own.crt", &own.certificate),
            key: file("own.key", own.key.expose()),
        },
        client_authority: file("ca.crt", authority.certificate()),
    };
    let unwritten = crate::keeper::Unwritten::default();
    let port = crate::serve::Port::open(serve, folder.path(), folder.path(), unwritten).unwrap();
    let address = port.address();
    std::thread::spawn(move || port.run());
    // No peer listens at the first address.
    let places = [format!("127.0.0.1:{}", landfall_testkit::free_port().unwrap()), address.to_string()];
    let whom = file("whom.crt", other.certificate());
    let (certificate, key) = issue(&other, "n1");
    let mut neighbour = Neighbour::new(&places, &whom, (&certificate, &key)).unwrap();
    let (_keeper, envelope) = kept();
    let (id, bytes) = (envelope.message.id, envelope.envelope);
    let mut refused = |what: &str| {
        let brought = neighbour.carry(id, &bytes);
        assert!(matches!(brought, Err(CarryError::Later(_))), "{what}: {brought:?}");
    };
    refused("a stranger to us");
    file("whom.crt", authority.certificate());
    refused("we are strangers");
    issue(&authority, "n2");
    // The other address, which is unreachable, does not turn this into a retry.
    let brought = neighbour.carry(id, &bytes);
    assert!(matches!(brought, Err(CarryError::NotPermitted(_))), "another node: {brought:?}");
    issue(&authority, "n1");
    let [_, second] = brings(&mut neighbour);
    let kept = std::fs::read(folder.path().join("neighbours/n1.json")).unwrap();
    assert_eq!(kept, second.envelope);
}

/// Uses a real API server. The object has fields for the verdict only.
#[test]
fn an_object_of_the_management_cluster_honours_the_contract() {
    if !have(landfall_testkit::ApiServer::NEEDS) {
        return;
    }
    let server = landfall_testkit::ApiServer::start().unwrap();
    let schema = serde_json::json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    for object in [
        serde_json::json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": "bootstrapreports.landfall.dev"},
            "spec": {
                "group": "landfall.dev", "scope": "Namespaced",
                "names": {"plural": "bootstrapreports", "singular": "bootstrapreport", "kind": "BootstrapReport"},
                "versions": [{
                    "name": "v1alpha1", "served": true, "storage": true, "schema": schema, "subresources": {"status": {}},
                }],
            },
        }),
        serde_json::json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "n1", "namespace": "default"}}),
        serde_json::json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "n1"},
            "rules": [{
                "apiGroups": ["landfall.dev"], "resources": ["bootstrapreports/status"], "resourceNames": ["n1"],
                "verbs": ["patch"],
            }],
        }),
        serde_json::json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "n1"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "n1"},
            "subjects": [{"kind": "ServiceAccount", "name": "n1", "namespace": "default"}],
        }),
    ] {
        server.apply(&object).unwrap();
    }
    let object = serde_json::json!({
        "apiVersion": "landfall.dev/v1alpha1", "kind": "BootstrapReport", "metadata": {"name": "n1", "namespace": "default"},
    });
    eventually("the resource to be served", Duration::from_secs(60), || server.apply(&object).ok()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (authority, token) = (folder.path().join("ca.crt"), folder.path().join("token"));
    std::fs::write(&authority, server.authority().certificate()).unwrap();
    std::fs::write(&token, server.kubectl(&["create", "token", "n1"]).unwrap()).unwrap();
    let carrier = |name: &str| BootstrapReport::new(&server.url(), &authority, token.clone(), name).unwrap();
    // Permission to write may take effect a moment after it is granted.
    let (_keeper, envelope) = kept();
    let (id, bytes) = (envelope.message.id, envelope.envelope);
    let mut own = carrier("default/n1");
    let written = || own.carry(id, &bytes).ok();
    eventually("the right to write", Duration::from_secs(60), written).unwrap();
    let sent = brings(&mut own);
    let status =
        server.kubectl(&["get", "bootstrapreport", "n1", "-o", "jsonpath={.status.state} {.status.time}"]);
    // The first report was delivered again last.
    assert_eq!(status.unwrap(), format!("unknown {}", sent[0].message.time));
    let foreign = carrier("default/n2").carry(id, &bytes);
    assert!(matches!(foreign, Err(CarryError::NotPermitted(_))), "{foreign:?}");
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
        let arrived = || good.arrived.lock().unwrap().contains_key(&envelope.message.id).then_some(());
        eventually("the good one to bring it", Duration::from_secs(60), arrived).unwrap();
    });
    let spool = Spool::open(&HostDisk, &folder.path().join("broken")).unwrap();
    assert_eq!(spool.waiting().unwrap(), [envelope.message.id]);
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
    assert_eq!(spool.waiting().unwrap(), [first.message.id]);
    faulty.failures.lock().unwrap().push(never());
    deliver(&mut faulty.clone(), &spool).unwrap();
    assert!(spool.waiting().unwrap().is_empty());
    assert!(!faulty.arrived.lock().unwrap().contains_key(&first.message.id));
}

/// A hub that authenticates its node by a token for `n1`.
#[derive(Default)]
struct Particular(Vec<ReportId>);

impl Carrier for Particular {
    fn name(&self) -> &'static str {
        "particular"
    }

    fn carry(&mut self, id: ReportId, envelope: &[u8]) -> Result<(), CarryError> {
        if message(envelope).unwrap().node.hostname != "n1" {
            return Err(CarryError::NotPermitted(Box::new(io::Error::other("this is another node's"))));
        }
        self.0.push(id);
        Ok(())
    }
}

/// The first report has the image's host name: cloud-init sets the machine's name later.
#[test]
fn what_is_told_under_another_name_does_not_hold_up_what_is_told_under_the_right_one() {
    let folder = tempfile::tempdir().unwrap();
    let mut keeper = Keeper::open(&HostDisk, folder.path()).unwrap();
    let spool = Spool::open(&HostDisk, &folder.path().join("spool")).unwrap();
    let image = NodeIdentity { hostname: "ubuntu".to_owned(), ..node("b1") };
    let mut hub = Particular::default();
    let mut add = |node: &NodeIdentity| {
        let envelope = keeper.keep(node.clone(), report(), Timestamp::now()).unwrap();
        spool.add(envelope).unwrap();
        envelope.message.id
    };
    let first = add(&image);
    assert!(!spool.takes_repeats(), "it waits to be brought");
    assert!(matches!(
        deliver(&mut hub, &spool),
        Err(DeliverError::Carry { source: CarryError::NotPermitted(_), .. })
    ));
    assert_eq!(spool.waiting().unwrap(), [first], "nothing newer is there yet");
    assert!(spool.takes_repeats(), "the next beat may take its place");
    let second = add(&image);
    assert!(deliver(&mut hub, &spool).is_err());
    assert_eq!(spool.waiting().unwrap(), [second]);
    let named = [add(&node("b1")), add(&node("b1"))];
    deliver(&mut hub, &spool).unwrap();
    assert_eq!(hub.0, named);
    assert!(spool.waiting().unwrap().is_empty());
}

/// cloud-init writes the files after the agent has started.
#[test]
fn files_that_come_later_are_waited_for() {
    let receiver = FileServer::start().unwrap();
    let value = "Bearer tok".to_owned();
    receiver.serve("/api/v1/reports", Serve::Post { header: "authorization", value, refuse: 0 });
    let folder = tempfile::tempdir().unwrap();
    let (authority, token) = (folder.path().join("ca.crt"), folder.path().join("token"));
    let mut hub = Hub::new(&receiver.url(""), Some(&authority), Some(token.clone()), None).unwrap();
    let (_keeper, envelope) = kept();
    let (id, bytes) = (envelope.message.id, envelope.envelope);
    for (path, text) in [(&authority, receiver.authority()), (&token, "tok\n")] {
        let brought = hub.carry(id, &bytes);
        assert!(matches!(brought, Err(CarryError::Later(_))), "{}: {brought:?}", path.display());
        std::fs::write(path, text).unwrap();
    }
    hub.carry(id, &bytes).unwrap();
}

/// Neither boot has a set clock, and the second boot's clock is behind the first's.
#[test]
fn reports_are_brought_in_the_order_they_were_made_and_say_which_boot_they_are_of() {
    let folder = tempfile::tempdir().unwrap();
    let spool = Spool::open(&HostDisk, &folder.path().join("spool")).unwrap();
    let (mut ids, mut numbers) = (Vec::new(), Vec::new());
    for (boot, second) in [("b1", 900), ("b1", 901), ("b2", 30), ("b2", 31), ("b3", 2)] {
        // The agent restarts for each report.
        let mut keeper = Keeper::open(&HostDisk, folder.path()).unwrap();
        let at = Timestamp::from_second(second).unwrap();
        let envelope = keeper.keep(node(boot), report(), at).unwrap();
        spool.add(envelope).unwrap();
        ids.push(envelope.message.id);
        numbers.push((envelope.message.boot_number, envelope.message.sequence));
    }
    assert_eq!(spool.waiting().unwrap(), ids);
    assert_eq!(
        numbers,
        [(1, 1), (1, 2), (2, 1), (2, 2), (3, 1)].map(|(boot, sequence)| (Some(boot), sequence))
    );
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
        ids.push(envelope.message.id);
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
    assert_eq!((first.message.sequence, second.message.sequence), (1, 2));
    let third = keeper.keep(node("b2"), report(), Timestamp::now()).unwrap().clone();
    assert_eq!(third.message.sequence, 1);
    let previous = std::fs::read(folder.path().join("previous-report.json")).unwrap();
    assert_eq!(previous, second.envelope, "to the byte, as it was signed");
    let keys = [first, second, third].map(|report| {
        landfall_pki::verify_envelope(&Envelope::parse(&report.envelope).unwrap()).unwrap().unwrap()
    });
    assert!(keys.iter().all(|key| *key == keys[0]), "the key did not outlive the process");
}

#[test]
fn that_it_hangs_for_longer_is_no_news_and_a_new_name_is() {
    let folder = tempfile::tempdir().unwrap();
    let mut keeper = Keeper::open(&HostDisk, folder.path()).unwrap();
    let mut hung = report();
    hung.verdict.state = landfall_model::report::State::Hung;
    hung.verdict.title = "`x` has been open for 30 min".to_owned();
    keeper.keep(node("b1"), hung.clone(), Timestamp::now()).unwrap();
    hung.verdict.title = "`x` has been open for 31 min".to_owned();
    assert!(!keeper.is_news(&node("b1"), &hung));
    hung.verdict.phase = Some(landfall_model::Phase::Join);
    assert!(keeper.is_news(&node("b1"), &hung));
    let renamed = NodeIdentity { hostname: "n2".to_owned(), ..node("b1") };
    keeper.keep(node("b1"), hung.clone(), Timestamp::now()).unwrap();
    assert!(keeper.is_news(&renamed, &hung), "cloud-init has given it its name");
}

#[test]
fn only_those_to_whom_it_costs_little_are_told_again() {
    let hub = Hub::new("http://127.0.0.1:1", None, None, None).unwrap();
    let file = Path::new("/nonexistent");
    let neighbour = Neighbour::new(&["127.0.0.1:1".to_owned()], file, (file, file)).unwrap();
    assert_eq!([hub.beats(), neighbour.beats()], [Some(1); 2]);
    let folder = tempfile::tempdir().unwrap();
    let quiet: [Box<dyn Carrier>; 2] = [
        Box::new(Folder::new(folder.path().to_owned())),
        Box::new(Console::new(folder.path().join("ttyS0"))),
    ];
    assert!(quiet.iter().all(|carrier| carrier.beats().is_none()));
}
