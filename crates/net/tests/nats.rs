//! Tests with a real server.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use landfall_net::nats::{Connection, Consumer, NatsError, Server, Settlement};
use landfall_testkit::{NatsServer, eventually, have};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

fn tls(server: &NatsServer) -> Arc<rustls::ClientConfig> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(server.authority()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    Arc::new(config)
}

#[tokio::test]
async fn what_is_settled_is_not_given_out_again_and_the_rest_is() {
    if !have(NatsServer::NEEDS) {
        return;
    }
    let server = NatsServer::start().unwrap();
    let (place, tls, login) = (server.url().parse::<Server>().unwrap(), tls(&server), server.login());
    let open = async || Connection::open(&place, &tls, Some(&login), "test").await.unwrap();
    let mut connection = open().await;
    let nobody = Consumer::open(&mut connection, "reports", "hub").await;
    assert!(matches!(nobody, Err(NatsError::NoStream(_))), "{nobody:?}");
    server.create_stream("R", "reports.>").unwrap();
    for number in 0..3 {
        let body = format!("body {number}");
        // A client that lost the response publishes again.
        for _ in 0..2 {
            connection.publish("reports.n1", &format!("id-{number}"), body.as_bytes()).await.unwrap();
        }
    }
    let consumer = Consumer::open(&mut connection, "reports", "hub").await.unwrap();
    let first = consumer.take(&mut connection, 2).await.unwrap();
    let bodies: Vec<_> = first.iter().map(|message| message.body.clone().unwrap()).collect();
    assert_eq!(bodies, [b"body 0", b"body 1"]);
    consumer.settle(&mut connection, &first[0], Settlement::Taken).await.unwrap();
    consumer.settle(&mut connection, &first[1], Settlement::Never).await.unwrap();
    drop(connection);
    // Another process, later: the server has kept the consumer.
    let mut connection = open().await;
    let again = Consumer::open(&mut connection, "reports", "hub").await.unwrap();
    assert_eq!(again, consumer);
    let rest = again.take(&mut connection, 64).await.unwrap();
    let bodies: Vec<_> = rest.iter().map(|message| message.body.clone().unwrap()).collect();
    assert_eq!(bodies, [b"body 2"]);
    again.settle(&mut connection, &rest[0], Settlement::Taken).await.unwrap();
    let settled = || server.pending("R", "hub").ok().filter(|pending| *pending == 0);
    eventually("everything to be settled", Duration::from_secs(60), settled).unwrap();
    let stranger = Connection::open(&place, &tls, Some(&server.wrong_login()), "test").await;
    assert!(matches!(stranger, Err(NatsError::Said(_))));
}
