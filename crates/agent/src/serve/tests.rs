use std::fmt::Write as _;
use std::io::Write as _;

use landfall_pki::{Authority, Leaf, Purpose};
use landfall_testkit::eventually;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::*;

const LIVEZ: &str = "GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n";
/// A request without its announced body; the server answers `100` once it waits for the body.
const HALF_A_REPORT: &str = "POST /neighbours HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1048576\r\n\
                             expect: 100-continue\r\n\r\n";
const WHOLE_REPORT: &str = "POST /neighbours HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{}";
/// Longer than any response takes, and shorter than a reader's idle limit.
const PROMPT: Duration = Duration::from_secs(20);

type Line = rustls::StreamOwned<rustls::ClientConnection, std::net::TcpStream>;

/// An agent's port and the CA of its callers.
struct Bench {
    _folder: tempfile::TempDir,
    authority: Authority,
    address: SocketAddr,
}

impl Bench {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::new("test", 2).unwrap();
        let file = |name: &str, text: &str| {
            std::fs::write(folder.path().join(name), text).unwrap();
            folder.path().join(name)
        };
        let own = authority.issue(&Leaf::new("agent", Purpose::Serve).names(["localhost"])).unwrap();
        let serve = Serve {
            address: "127.0.0.1:0".parse().unwrap(),
            certificate: CertificateFiles {
                certificate: file("own.crt", &own.certificate),
                key: file("own.key", own.key.expose()),
            },
            client_authority: file("ca.crt", authority.certificate()),
        };
        let port = Port::open(serve, folder.path(), folder.path(), Unwritten::default()).unwrap();
        let address = port.address();
        std::thread::spawn(move || port.run());
        Self { _folder: folder, authority, address }
    }

    /// Returns the TLS configuration of a caller with this name and organization.
    fn caller(&self, name: &str, organization: &str) -> Arc<rustls::ClientConfig> {
        let caller = Leaf::new(name, Purpose::Call).organization(organization);
        let caller = self.authority.issue(&caller).unwrap();
        let certificate = |pem: &str| CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
        let mut roots = rustls::RootCertStore::empty();
        roots.add(certificate(self.authority.certificate())).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_client_auth_cert(
                vec![certificate(&caller.certificate)],
                PrivateKeyDer::from_pem_slice(caller.key.expose().as_bytes()).unwrap(),
            )
            .unwrap();
        Arc::new(config)
    }

    /// Opens a connection and sends this text.
    fn say(&self, caller: &Arc<rustls::ClientConfig>, words: &str) -> Line {
        let stream = std::net::TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PROMPT)).unwrap();
        let name = "localhost".try_into().unwrap();
        let connection = rustls::ClientConnection::new(Arc::clone(caller), name).unwrap();
        let mut line = rustls::StreamOwned::new(connection, stream);
        while line.conn.is_handshaking() {
            line.conn.complete_io(&mut line.sock).unwrap();
        }
        line.write_all(words.as_bytes()).unwrap();
        line
    }
}

/// Reads the status, which must arrive within [`PROMPT`].
fn status(line: &mut Line) -> String {
    let mut answer = [0; 12];
    line.read_exact(&mut answer).unwrap();
    String::from_utf8_lossy(answer.strip_prefix(b"HTTP/1.1 ").unwrap()).into_owned()
}

/// Reads up to the end of the connection, which must arrive within [`PROMPT`].
fn rest(mut line: Line) -> String {
    let mut rest = String::new();
    line.read_to_string(&mut rest).unwrap();
    rest
}

/// Two hundred silent connections: if each held a slot, they would block a caller for two minutes.
#[test]
fn connections_that_say_nothing_keep_nobody_out() {
    let bench = Bench::new();
    let silent: Vec<_> = (0..200).map(|_| std::net::TcpStream::connect(bench.address).unwrap()).collect();
    let viewer = bench.caller("ann", "landfall:viewers");
    assert_eq!(status(&mut bench.say(&viewer, LIVEZ)), "200");
    drop(silent);
}

/// As many connections as there are reader slots, some silent and some sending requests. With slots, they
/// would block readers for as long as they send requests.
#[test]
fn certificates_that_permit_nothing_keep_nobody_out() {
    let bench = Bench::new();
    let stranger = bench.caller("eve", "somebody:else");
    let silent: Vec<Line> = (0..16).map(|_| bench.say(&stranger, "")).collect();
    let mut asking: Vec<Line> = (0..16).map(|_| bench.say(&stranger, LIVEZ)).collect();
    for line in &mut asking {
        assert_eq!(status(line), "403");
    }
    let viewer = bench.caller("ann", "landfall:viewers");
    assert_eq!(status(&mut bench.say(&viewer, LIVEZ)), "200");
    for line in asking {
        let rest = rest(line);
        assert!(rest.contains("connection: close"), "{rest}");
    }
    drop(silent);
}

#[test]
fn one_node_keeps_out_neither_readers_nor_other_nodes() {
    let bench = Bench::new();
    let node = bench.caller("system:node:n2", "system:nodes");
    let mut stalled: Vec<Line> = (0..2).map(|_| bench.say(&node, HALF_A_REPORT)).collect();
    for line in &mut stalled {
        assert_eq!(status(line), "100");
    }
    for _ in 0..3 {
        let mut line = bench.say(&node, HALF_A_REPORT);
        assert_eq!(status(&mut line), "503");
        let rest = rest(line);
        assert!(rest.contains("retry-after: 5") && rest.contains("try again"), "{rest}");
    }
    let other = bench.caller("system:node:n3", "system:nodes");
    let mut line = bench.say(&other, WHOLE_REPORT);
    assert_eq!(status(&mut line), "422");
    assert!(rest(line).contains("connection: close"));
    let viewer = bench.caller("ann", "landfall:viewers");
    let mut line = bench.say(&viewer, LIVEZ);
    assert_eq!(status(&mut line), "200");
    // A closed connection releases its slot.
    drop(stalled);
    let again = || (status(&mut bench.say(&node, WHOLE_REPORT)) == "422").then_some(());
    eventually("the node has a place again", PROMPT, again).unwrap();
}

/// Holds also while nodes hold all of their slots.
#[test]
fn nodes_take_no_places_of_readers_and_readers_are_told_when_theirs_are_taken() {
    let bench = Bench::new();
    let mut stalled = Vec::new();
    for name in ["n2", "n3"] {
        let node = bench.caller(&format!("system:node:{name}"), "system:nodes");
        stalled.extend((0..2).map(|_| bench.say(&node, HALF_A_REPORT)));
    }
    for line in &mut stalled {
        assert_eq!(status(line), "100");
    }
    let node = bench.caller("system:node:n4", "system:nodes");
    assert_eq!(status(&mut bench.say(&node, HALF_A_REPORT)), "503");
    let viewer = bench.caller("ann", "landfall:viewers");
    let mut readers: Vec<Line> = (0..16).map(|_| bench.say(&viewer, LIVEZ)).collect();
    for line in &mut readers {
        assert_eq!(status(line), "200");
    }
    assert_eq!(status(&mut bench.say(&viewer, LIVEZ)), "503");
    // An incomplete report releases its slot at the body timeout.
    for line in stalled {
        let rest = rest(line);
        assert!(rest.contains("HTTP/1.1 408 "), "{rest}");
    }
}

#[test]
fn while_a_bundle_is_made_the_next_reader_is_asked_to_come_later() {
    let folder = tempfile::tempdir().unwrap();
    let (root, state) = (folder.path().join("root"), folder.path().join("state"));
    for folder in [root.join("var/log"), state.clone()] {
        std::fs::create_dir_all(folder).unwrap();
    }
    // More than the buffer of a reader: digits without repetition compress badly.
    let log = (0_u64..120_000).fold(String::new(), |mut log, at| {
        let _ = writeln!(log, "{:020}", at.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        log
    });
    std::fs::write(root.join("var/log/cloud-init-output.log"), log).unwrap();
    let desk = Desk {
        root,
        report: state.join(REPORT),
        spools: state.join(SPOOLS),
        unwritten: Unwritten::default(),
        neighbours: Arc::new(Neighbours::open(&state).unwrap()),
        bodies: BodyBudget::new(BODIES),
        bundling: Arc::new(Semaphore::new(1)),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let first = desk.bundle(Packing::Gzip);
        assert_eq!(first.status(), StatusCode::OK);
        let second = desk.bundle(Packing::Gzip);
        assert_eq!(second.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(second.headers()[RETRY_AFTER], TRY_BUNDLE_AFTER);
        // A reader that disconnects early releases the permit for the next one.
        drop(first);
        drop(desk.bundling.acquire().await.unwrap());
        let third = desk.bundle(Packing::Gzip);
        assert_eq!(third.status(), StatusCode::OK);
        assert!(third.into_body().collect().await.unwrap().to_bytes().starts_with(b"\x1f\x8b"));
    });
}
