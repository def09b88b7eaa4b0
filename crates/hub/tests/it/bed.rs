//! A hub in this process on a free port, simulated nodes, and a small HTTP client.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use landfall_evidence::bundle::{BundleWriter, Packing, bundle_id};
use landfall_hub::{Config, ObjectPlace, Server, ServerTlsFiles, StorePlace, Take};
use landfall_model::bundle::{BundleItem, ItemOutcome};
use landfall_model::envelope::{Envelope, ReportId, ReportMessage, Signature};
use landfall_model::identity::NodeIdentity;
use landfall_model::report::{
    Class, Evidence, Finding, PhaseOutcome, Report, Source, State, TimelineEntry, Trust, Verdict,
};
use landfall_model::{Cause, Confidence, Phase};
use landfall_pki::SigningKey;
use landfall_testkit::{ObjectServer, ObjectStore, Postgres, have};
use serde::{Serialize, Serializer};
use serde_json::Value;
use tempfile::TempDir;
use tokio::sync::oneshot;

/// A hub that stops when it is dropped.
pub(crate) struct TestHub {
    pub(crate) address: SocketAddr,
    pub(crate) folder: TempDir,
    grown_up: Option<GrownUp>,
    end: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// The database and the object store of a hub that does not use local files.
struct GrownUp {
    _database: Arc<Postgres>,
    objects: Arc<ObjectStore>,
    prefix: String,
}

/// A report as a node sends it. A report that was changed after it was signed keeps its signature.
#[derive(Clone)]
pub(crate) struct SentReport {
    message: ReportMessage,
    pub(crate) signatures: Vec<Signature>,
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

// === impl TestHub ===

impl TestHub {
    pub(crate) fn start() -> Self {
        Self::with(|_| {})
    }

    pub(crate) fn with(change: impl FnOnce(&mut Config)) -> Self {
        Self::with_files(|config, _| change(config))
    }

    /// Starts a hub; `change` may put files into its directory.
    pub(crate) fn with_files(change: impl FnOnce(&mut Config, &Path)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut config = config(&folder);
        let grown_up = GrownUp::wanted(&mut config);
        change(&mut config, folder.path());
        let (end, ended) = oneshot::channel::<()>();
        let (told, address) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
            runtime.block_on(async move {
                let server = Server::bind(config).await.unwrap();
                told.send(server.address()).unwrap();
                server
                    .serve(async {
                        let _ = ended.await;
                    })
                    .await;
            });
        });
        let address = address.recv_timeout(Duration::from_secs(60)).unwrap();
        Self { address, folder, grown_up, end: Some(end), thread: Some(thread) }
    }

    /// Returns whether the bundle is in the bundle storage.
    pub(crate) fn keeps(&self, digest: &str) -> bool {
        let kept = format!("{}/{digest}", &digest[..2]);
        match &self.grown_up {
            Some(grown_up) => grown_up.objects.objects(&grown_up.prefix).unwrap().contains_key(&kept),
            None => self.folder.path().join("bundles").join(kept).exists(),
        }
    }

    /// Returns the number of unfinished bundle files. With an object store, their directory is private to the hub.
    pub(crate) fn unfinished(&self) -> usize {
        let unfinished = fs::read_dir(self.folder.path().join("bundles/unfinished"));
        unfinished.map_or(0, Iterator::count)
    }

    pub(crate) fn request(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        ask(self.address, method, path, headers, body)
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.request("GET", path, &[], b"")
    }

    #[track_caller]
    pub(crate) fn json(&self, path: &str) -> Value {
        let answer = self.get(path);
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
        answer.json()
    }

    pub(crate) fn post(&self, envelope: &SentReport) -> Answer {
        let body = serde_json::to_vec(envelope).unwrap();
        self.request("POST", "/api/v1/reports", &[("content-type", "application/json")], &body)
    }

    #[track_caller]
    pub(crate) fn stored(&self, envelope: &SentReport) {
        let answer = self.post(envelope);
        assert_eq!((answer.status, answer.json()["outcome"].as_str()), (200, Some("stored")), "{answer:?}");
    }
}

impl Drop for TestHub {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Returns whether this test is in the module `on_postgres`.
pub(crate) fn on_postgres() -> bool {
    std::thread::current().name().is_some_and(|name| name.starts_with("on_postgres::"))
}

// === impl GrownUp ===

impl GrownUp {
    /// Returns a separate database and object store prefix for tests in the module `on_postgres`.
    fn wanted(config: &mut Config) -> Option<Self> {
        static COUNT: AtomicU64 = AtomicU64::new(1);
        if !on_postgres() || !have(Postgres::NEEDS) || !have(ObjectServer::Versitygw.needs()) {
            return None;
        }
        let (database, objects) = (Postgres::shared().unwrap(), ObjectStore::shared().unwrap());
        let prefix = format!("hub-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        config.store = StorePlace::parse(&database.database().unwrap()).unwrap();
        config.objects = ObjectPlace::parse(&bucket(&objects, &prefix)).unwrap();
        Some(Self { _database: database, objects, prefix })
    }
}

/// Returns the URL of a prefix of an object store, as in a hub's configuration.
pub(crate) fn bucket(objects: &ObjectStore, prefix: &str) -> String {
    format!(
        "{}&credentials-file={}&ca-file={}",
        objects.location(prefix),
        objects.credentials().display(),
        objects.authority().display()
    )
}

pub(crate) fn config(folder: &TempDir) -> Config {
    Config {
        listen: "127.0.0.1:0".parse().unwrap(),
        store: StorePlace::Sqlite(folder.path().join("hub.db")),
        objects: ObjectPlace::Folder(folder.path().join("bundles")),
        tls: None::<ServerTlsFiles>,
        token_key: None,
        proxy: None,
        keep: Duration::from_secs(3600),
        keep_bundles: Duration::from_secs(3600),
        max_bundle: 8 << 20,
        watch: Vec::new(),
        watch_authority: None,
        pull: None,
        take: Take::default(),
    }
}

/// Sends one request over a separate connection.
pub(crate) fn ask(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Answer {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    let mut head =
        format!("{method} {path} HTTP/1.1\r\nconnection: close\r\ncontent-length: {}\r\n", body.len());
    if !headers.iter().any(|(name, _)| *name == "host") {
        head += &format!("host: {address}\r\n");
    }
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    head += "\r\n";
    // The hub may respond and close before the complete request is sent.
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    Answer::parse(&answer)
}

// === impl Answer ===

impl Answer {
    pub(crate) fn parse(bytes: &[u8]) -> Self {
        let end = bytes.windows(4).position(|window| window == b"\r\n\r\n").unwrap_or(bytes.len());
        let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        let mut body = bytes.get(end + 4..).unwrap_or_default().to_vec();
        if head.contains("transfer-encoding: chunked") {
            body = unchunked(&body);
        }
        Self { status, head, body }
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }
}

// === impl SentReport ===

impl Deref for SentReport {
    type Target = ReportMessage;

    fn deref(&self) -> &ReportMessage {
        &self.message
    }
}

impl DerefMut for SentReport {
    fn deref_mut(&mut self) -> &mut ReportMessage {
        &mut self.message
    }
}

impl Serialize for SentReport {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let payload = serde_json::to_vec(&self.message).unwrap();
        let signatures = self.signatures.clone();
        Envelope { signatures, ..Envelope::unsigned(payload) }.serialize(serializer)
    }
}

fn unchunked(mut body: &[u8]) -> Vec<u8> {
    let mut whole = Vec::new();
    while let Some(end) = body.windows(2).position(|window| window == b"\r\n") {
        let size = usize::from_str_radix(&String::from_utf8_lossy(&body[..end]), 16).unwrap_or(0);
        if size == 0 {
            break;
        }
        whole.extend_from_slice(&body[end + 2..end + 2 + size]);
        body = &body[end + 2 + size + 2..];
    }
    whole
}

pub(crate) fn new_id() -> ReportId {
    static COUNT: AtomicU64 = AtomicU64::new(1);
    let mut random = [0; 10];
    random[2..].copy_from_slice(&COUNT.fetch_add(1, Ordering::Relaxed).to_be_bytes());
    ReportId::new(Timestamp::now(), random)
}

pub(crate) fn identity(name: &str) -> NodeIdentity {
    NodeIdentity {
        hostname: name.to_owned(),
        machine_id: Some("0123456789abcdef".to_owned()),
        boot_id: Some("boot-1".to_owned()),
        os: Some("Debian GNU/Linux 12 (bookworm)".to_owned()),
        architecture: Some("x86_64".to_owned()),
        provider_id: None,
    }
}

pub(crate) fn envelope(node: &str, sequence: u64, report: Report) -> SentReport {
    let message = ReportMessage {
        id: new_id(),
        node: identity(node),
        boot_number: None,
        sequence,
        time: Timestamp::now(),
        report,
    };
    SentReport { message, signatures: Vec::new() }
}

/// Returns the envelope, signed with this key.
pub(crate) fn signed(mut envelope: SentReport, key: &SigningKey) -> SentReport {
    envelope.signatures = key.seal(serde_json::to_vec(&envelope.message).unwrap()).signatures;
    envelope
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_767_323_045 + second).unwrap()
}

pub(crate) fn running() -> Report {
    Report {
        format: 1,
        verdict: Verdict {
            state: State::Running,
            cause: None,
            title: "Joining the cluster".to_owned(),
            component: None,
            phase: Some(Phase::Join),
            confidence: Confidence::NONE,
            trust: Trust::Proven,
        },
        findings: Vec::new(),
        timeline: vec![
            TimelineEntry {
                phase: Phase::Kernel,
                started: Some(at(0)),
                ended: Some(at(15)),
                outcome: PhaseOutcome::Ok,
                boot: None,
            },
            TimelineEntry {
                phase: Phase::CloudInit,
                started: Some(at(15)),
                ended: Some(at(90)),
                outcome: PhaseOutcome::Ok,
                boot: None,
            },
            TimelineEntry {
                phase: Phase::Join,
                started: Some(at(90)),
                ended: None,
                outcome: PhaseOutcome::Open,
                boot: None,
            },
        ],
        sources: vec![Source {
            name: "kubelet.log".to_owned(),
            kind: "journal-text".to_owned(),
            bytes: 1234,
            lines: 17,
            first: None,
            last: None,
            error: None,
        }],
        last_seen: None,
        next_steps: Vec::new(),
        reasoning: None,
    }
}

pub(crate) fn succeeded() -> Report {
    let mut report = running();
    report.verdict.state = State::Succeeded;
    "The node is Ready".clone_into(&mut report.verdict.title);
    report.verdict.phase = Some(Phase::Ready);
    report.timeline[2].ended = Some(at(120));
    report.timeline[2].outcome = PhaseOutcome::Ok;
    report
}

/// Returns a failed report with this cause and this line of evidence.
pub(crate) fn failed(cause: &str, title: &str, line: &str) -> Report {
    let mut report = running();
    let cause = Cause::new(cause).unwrap();
    report.verdict = Verdict {
        state: State::Failed,
        cause: Some(cause.clone()),
        title: title.to_owned(),
        component: Some("network".to_owned()),
        phase: Some(Phase::Join),
        confidence: Confidence::new(0.95),
        trust: Trust::Proven,
    };
    report.findings = vec![Finding {
        cause: cause.clone(),
        title: title.to_owned(),
        root: true,
        confidence: Confidence::new(0.95),
        class: Class::Retryable,
        explains: Vec::new(),
        evidence: vec![Evidence {
            source: "machine:log-bundle-20260102030405/bootstrap/journals/kubelet.log".to_owned(),
            line: 42,
            time: Some(at(100)),
            text: line.to_owned(),
            trust: Trust::Proven,
            focus: String::new(),
            before: Vec::new(),
            after: Vec::new(),
            count: 1,
        }],
        nodes: Vec::new(),
        ruled_out: None,
        fix: "Correct `/etc/resolv.conf`.".to_owned(),
        reference: format!("docs/causes/{cause}.md"),
    }];
    report.timeline[2].ended = Some(at(130));
    report.timeline[2].outcome = PhaseOutcome::Failed;
    report
}

pub(crate) fn no_dns() -> Report {
    failed(
        "dns-resolution-failure",
        "The name `api.corp` cannot be resolved",
        "dial tcp: lookup api.corp on 10.0.0.2:53: no such host",
    )
}

/// Returns a bundle of the node with one log of these lines.
pub(crate) fn bundle(node: &str, lines: &[String]) -> Vec<u8> {
    let started = at(0);
    let mut bundle =
        BundleWriter::new(Vec::new(), Packing::Gzip, &bundle_id(started), identity(node), started);
    let item = |path: &str| BundleItem {
        path: path.to_owned(),
        source: "journal:kubelet.service".to_owned(),
        outcome: ItemOutcome::Collected,
        duration_ms: 1,
        bytes: 0,
        truncated: 0,
        sha256: None,
        redactions: std::collections::BTreeMap::new(),
    };
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    bundle.add(item("bootstrap/machine/hostname"), format!("{node}\n").as_bytes()).unwrap();
    bundle.add(item("bootstrap/journals/kubelet.log"), text.as_bytes()).unwrap();
    let unit = "● kubelet.service - kubelet\n     Active: activating (auto-restart) (Result: exit-code)\n";
    bundle.add(item("unit-status/kubelet.service.txt"), unit.as_bytes()).unwrap();
    bundle.add(item("bootstrap/probes/dns.txt"), b"10.0.0.2: no answer to `api.corp` within 5 s\n").unwrap();
    bundle.finish(started).unwrap().out
}
