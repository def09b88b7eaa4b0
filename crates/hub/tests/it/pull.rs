//! Polling of agents: accepted and rejected reports, and unresponsive agents.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::TcpListener;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use landfall_hub::{Bundles, Neighbours, Pull, PulledAgent};
use landfall_pki::{Authority, Leaf, Purpose, SigningKey};
use landfall_testkit::{eventually, free_port};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection, StreamOwned};

use crate::bed::{SentReport, TestHub, bundle, envelope, no_dns, running};

const LIMIT: Duration = Duration::from_secs(60);

type Pages = Arc<Mutex<BTreeMap<String, Vec<u8>>>>;

/// Starts an agent that serves these pages to clients with a certificate, until the test ends.
fn agent(authority: &Authority, names: &[&str], pages: &Pages) -> u16 {
    let issued = authority.issue(&Leaf::new("agent", Purpose::Serve).names(names.iter().copied())).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.certificate().as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier.build().unwrap())
        .with_single_cert(
            vec![CertificateDer::from_pem_slice(issued.certificate.as_bytes()).unwrap()],
            PrivateKeyDer::from_pem_slice(issued.key.expose().as_bytes()).unwrap(),
        )
        .unwrap();
    let (config, pages) = (Arc::new(config), Arc::clone(pages));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(stream) = stream else { return };
            let (config, pages) = (Arc::clone(&config), Arc::clone(&pages));
            std::thread::spawn(move || {
                let connection = ServerConnection::new(config).unwrap();
                let mut stream = StreamOwned::new(connection, stream);
                while let Some(path) = requested(&mut stream) {
                    let page = pages.lock().unwrap().get(&path).cloned();
                    let (status, body) = page.map_or(("404 Not Found", Vec::new()), |body| ("200 OK", body));
                    let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n", body.len());
                    if stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body)).is_err() {
                        return;
                    }
                }
            });
        }
    });
    port
}

/// Returns the path of the next request.
fn requested(stream: &mut impl std::io::Read) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    String::from_utf8_lossy(&head).split(' ').nth(1).map(str::to_owned)
}

fn pages(of: &[(&str, Vec<u8>)]) -> Pages {
    Arc::new(Mutex::new(of.iter().map(|(path, body)| ((*path).to_owned(), body.clone())).collect()))
}

fn json(envelope: &SentReport) -> Vec<u8> {
    serde_json::to_vec(envelope).unwrap()
}

fn signed(envelope: SentReport) -> SentReport {
    crate::bed::signed(envelope, &SigningKey::generate().unwrap().0)
}

/// Starts a hub that polls these agents every second.
fn hub(authority: &Authority, folder: &Path, agents: &[String], neighbours: Neighbours) -> TestHub {
    let leaf = Leaf::new("hub", Purpose::Call).organization("landfall:viewers");
    let issued = authority.issue(&leaf).unwrap();
    let file = |name: &str, text: &str| {
        std::fs::write(folder.join(name), text).unwrap();
        folder.join(name)
    };
    let pull = Pull {
        agents: agents.iter().map(|agent| PulledAgent::parse(agent).unwrap()).collect(),
        list: Some(file("agents", "# none yet\n")),
        proxy: None,
        clusters: Vec::new(),
        authority: file("ca.crt", authority.certificate()),
        certificate: file("hub.crt", &issued.certificate),
        key: file("hub.key", issued.key.expose()),
        backoff: Pull::backoff(Duration::from_secs(1)).unwrap(),
        neighbours,
        bundles: Bundles::FetchedFromFailed,
    };
    TestHub::with(|config| config.pull = Some(pull))
}

/// Returns the value of a series of the hub's metrics.
fn metric(hub: &TestHub, series: &str) -> u64 {
    let page = hub.get("/metrics").text();
    let line = page.lines().find_map(|line| line.strip_prefix(series)).unwrap_or_default();
    line.trim().parse().unwrap_or(0)
}

fn cause(hub: &TestHub, node: &str) -> Option<String> {
    let answer = hub.get(&format!("/api/v1/nodes/{node}"));
    (answer.status == 200).then(|| answer.json()["cause"].as_str().unwrap_or("none").to_owned())
}

#[test]
fn reports_and_bundles_are_fetched_and_news_is_seen() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new("test", 2).unwrap());
    let content = pages(&[("/report", json(&envelope("n1", 1, running())))]);
    let port = agent(&authority, &["127.0.0.1", "n1"], &content);
    let hub = hub(&authority, folder.path(), &[format!("127.0.0.1:{port}")], Neighbours::LeftAlone);
    eventually("the first report", LIMIT, || cause(&hub, "n1").filter(|cause| cause == "none")).unwrap();
    {
        let mut content = content.lock().unwrap();
        content.insert("/bundle".to_owned(), bundle("n1", &["a line".to_owned()]));
        content.insert("/report".to_owned(), json(&envelope("n1", 2, no_dns())));
    }
    eventually("the bundle of a node that failed", LIMIT, || {
        let node = hub.json("/api/v1/nodes/n1");
        (node["cause"] == "dns-resolution-failure" && node["bundles"].as_array()?.len() == 1).then_some(())
    })
    .unwrap();
    let asked = metric(&hub, "landfall_hub_pulls_total{outcome=\"answered\"}");
    eventually("another round", LIMIT, || {
        (metric(&hub, "landfall_hub_pulls_total{outcome=\"answered\"}") > asked + 1).then_some(())
    })
    .unwrap();
    let stored = metric(&hub, "landfall_hub_reports_total{outcome=\"stored\"}");
    let again = metric(&hub, "landfall_hub_reports_total{outcome=\"duplicate\"}");
    assert_eq!((stored, again), (2, 0), "what was said already is not written again");
    assert_eq!(hub.json("/api/v1/nodes/n1")["bundles"].as_array().unwrap().len(), 1, "one bundle is enough");
}

/// The agent may be sending another bundle, or too many nodes failed concurrently.
#[test]
fn a_bundle_that_could_not_be_had_is_asked_for_again() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new("test", 2).unwrap());
    let content = pages(&[("/report", json(&envelope("n1", 1, no_dns())))]);
    let port = agent(&authority, &["127.0.0.1", "n1"], &content);
    let hub = hub(&authority, folder.path(), &[format!("127.0.0.1:{port}")], Neighbours::LeftAlone);
    eventually("a bundle that is refused", LIMIT, || {
        (metric(&hub, "landfall_hub_pulls_total{outcome=\"failed\"}") > 0).then_some(())
    })
    .unwrap();
    content.lock().unwrap().insert("/bundle".to_owned(), bundle("n1", &["a line".to_owned()]));
    eventually("the bundle", LIMIT, || {
        (hub.json("/api/v1/nodes/n1")["bundles"].as_array()?.len() == 1).then_some(())
    })
    .unwrap();
}

/// A bundle that is too large or belongs to another node. Otherwise the hub would fetch it again forever, and each
/// failure would delay the next poll of the agent.
#[test]
fn a_bundle_that_will_never_do_is_asked_for_once() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new("test", 2).unwrap());
    let content = pages(&[
        ("/report", json(&envelope("n1", 1, no_dns()))),
        ("/bundle", bundle("n2", &["a line".to_owned()])),
    ]);
    let port = agent(&authority, &["127.0.0.1", "n1"], &content);
    let hub = hub(&authority, folder.path(), &[format!("127.0.0.1:{port}")], Neighbours::LeftAlone);
    eventually("two rounds after the one that failed", LIMIT, || {
        let (answered, failed) = ("outcome=\"answered\"", "outcome=\"failed\"");
        let count = |outcome| metric(&hub, &format!("landfall_hub_pulls_total{{{outcome}}}"));
        (count(failed) == 1 && count(answered) >= 2).then_some(())
    })
    .unwrap();
    content.lock().unwrap().insert("/bundle".to_owned(), bundle("n1", &["a line".to_owned()]));
    content.lock().unwrap().insert("/report".to_owned(), json(&envelope("n1", 2, no_dns())));
    eventually("the bundle, asked for with the next report", LIMIT, || {
        (hub.json("/api/v1/nodes/n1")["bundles"].as_array()?.len() == 1).then_some(())
    })
    .unwrap();
}

#[test]
fn an_agent_speaks_for_nobody_else() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new("test", 2).unwrap());
    let liar = pages(&[("/report", json(&envelope("n2", 1, no_dns())))]);
    let liar = agent(&authority, &["127.0.0.1", "n1"], &liar);
    let named = pages(&[("/report", json(&envelope("n3", 1, no_dns())))]);
    let named = agent(&authority, &["127.0.0.1"], &named);
    let other = Authority::new("test", 2).unwrap();
    let strange = pages(&[("/report", json(&envelope("n4", 1, no_dns())))]);
    let strange = agent(&other, &["127.0.0.1", "n4"], &strange);
    let large = pages(&[("/report", vec![b' '; 4 << 20])]);
    let large = agent(&authority, &["127.0.0.1", "n5"], &large);
    let gone = free_port().unwrap();
    let agents = [
        format!("127.0.0.1:{liar}"),
        format!("n3=127.0.0.1:{named}"),
        format!("127.0.0.1:{strange}"),
        format!("127.0.0.1:{large}"),
        format!("127.0.0.1:{gone}"),
    ];
    let hub = hub(&authority, folder.path(), &agents, Neighbours::LeftAlone);
    eventually("the node that was named", LIMIT, || cause(&hub, "n3")).unwrap();
    eventually("four that fail", LIMIT, || {
        (metric(&hub, "landfall_hub_pulls_total{outcome=\"failed\"}") >= 4).then_some(())
    })
    .unwrap();
    let fleet = hub.json("/api/v1/fleet");
    assert_eq!(fleet["total"], 1, "{fleet}");
}

#[test]
fn what_others_left_with_an_agent_is_taken_when_it_is_signed() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new("test", 2).unwrap());
    let content = pages(&[
        ("/report", json(&envelope("n1", 1, running()))),
        ("/neighbours", br#"{"nodes": ["n7", "n8", "../x", "n9"]}"#.to_vec()),
        ("/neighbours/n7/report", json(&envelope("n7", 1, no_dns()))),
        ("/neighbours/n8/report", json(&signed(envelope("n1", 9, no_dns())))),
        ("/neighbours/n9/report", json(&signed(envelope("n9", 1, no_dns())))),
    ]);
    let port = agent(&authority, &["127.0.0.1", "n1"], &content);
    let hub = hub(&authority, folder.path(), &[format!("127.0.0.1:{port}")], Neighbours::Asked);
    eventually("the neighbour that signed", LIMIT, || cause(&hub, "n9")).unwrap();
    let fleet = hub.json("/api/v1/fleet");
    assert_eq!(fleet["total"], 2, "{fleet}");
    assert_eq!(cause(&hub, "n1").as_deref(), Some("none"), "nobody speaks for the agent's own node");

    // A polled report cannot take over a node that reports by itself and does not sign.
    hub.stored(&envelope("n10", 1, running()));
    let taken = json(&signed(envelope("n10", 2, no_dns())));
    content.lock().unwrap().insert("/neighbours/n10/report".to_owned(), taken);
    content.lock().unwrap().insert("/neighbours".to_owned(), br#"{"nodes": ["n10"]}"#.to_vec());
    let refused = || metric(&hub, "landfall_hub_reports_total{outcome=\"refused\"}");
    let before = refused();
    eventually("a report that is refused", LIMIT, || (refused() > before).then_some(())).unwrap();
    assert_eq!(cause(&hub, "n10").as_deref(), Some("none"));
}
