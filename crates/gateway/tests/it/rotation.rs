//! Certificates that are renewed while the gateway runs.

use std::net::TcpStream;

use landfall_pki::{Authority, Leaf, Purpose};
use landfall_testkit::eventually;
use rustls::ClientConnection;
use rustls::pki_types::{CertificateDer, ServerName};

use crate::bed::{Bed, Files, GATHER_TOKEN, LIMIT};
use crate::client::{Client, Identity};

/// Returns the certificate served to a client for a server name.
fn shown(client: &Client, bed: &Bed, name: &'static str) -> Option<CertificateDer<'static>> {
    let mut tls = ClientConnection::new(client.tls().into(), ServerName::try_from(name).unwrap()).unwrap();
    let mut stream = TcpStream::connect(bed.address).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    tls.complete_io(&mut stream).ok()?;
    tls.peer_certificates().and_then(|chain| chain.first().cloned())
}

#[test]
fn renewed_certificates_are_served_by_name_without_a_restart() {
    const NAME: &str = "api.example.org";
    let balanced = Authority::new("load balancer", 30).unwrap();
    let leaf = Leaf::new("lb", Purpose::Serve).names([NAME]);
    let bed = Bed::without_api(|config| {
        let folder = config.serving[0].key.parent().unwrap().to_owned();
        config.serving.push(Files { folder }.issue(&balanced, "lb", &leaf));
    });
    let of_balancer = Client::new(bed.address, balanced.certificate(), Identity::None);
    let of_cluster = bed.client(Identity::None);
    let first = shown(&of_balancer, &bed, NAME).unwrap();
    let default = shown(&of_cluster, &bed, "localhost").unwrap();
    // An open connection survives the renewal.
    let mut kept = bed.runtime.block_on(async {
        let stream = hyper_util::rt::TokioIo::new(of_cluster.connect(b"http/1.1").await);
        let (sender, connection) = hyper::client::conn::http1::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        sender
    });

    bed.files().issue(&balanced, "lb", &leaf);
    let second = eventually("the renewed certificate", LIMIT, || {
        shown(&of_balancer, &bed, NAME).filter(|certificate| *certificate != first)
    })
    .unwrap();
    assert_eq!(shown(&of_cluster, &bed, "localhost").unwrap(), default, "the other pair has not changed");

    // A different CA, and a different gather token: the new files apply.
    let successor = Authority::new("another load balancer", 30).unwrap();
    bed.files().issue(&successor, "lb", &leaf);
    std::fs::write(bed.folder.path().join("gather-token"), "another-token-of-some-length").unwrap();
    let of_successor = Client::new(bed.address, successor.certificate(), Identity::None);
    let third =
        eventually("the successor's certificate", LIMIT, || shown(&of_successor, &bed, NAME)).unwrap();
    assert_ne!(third, second);
    assert!(shown(&of_balancer, &bed, NAME).is_none(), "the old authority is not shown any more");
    let code = |token: &str| {
        bed.client(Identity::None).bearer(token).get(&bed.runtime, "/bootstrap/identity").status.as_u16()
    };
    assert_eq!(code("another-token-of-some-length"), 200);
    assert_ne!(code(GATHER_TOKEN), 200, "an old token opens nothing");
    let still = bed.runtime.block_on(async {
        kept.ready().await.unwrap();
        kept.send_request(of_cluster.request(hyper::Method::GET, "/livez", "")).await.unwrap().status()
    });
    assert_eq!(still, 200);
}
