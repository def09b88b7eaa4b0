//! Authentication and authorization.

use std::fs;
use std::sync::Arc;

use landfall_hub::{CertificateFiles, Config, Holder, HubError, Proxy, Server, ServerTlsFiles, TokenKey};
use landfall_model::Secret;
use landfall_pki::{Authority, Leaf, Purpose};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};

use crate::bed::{Answer, TestHub, bundle, config, envelope, no_dns, running};

const KEY: &[u8] = b"a key that is long enough to seal tokens";

pub(crate) fn token(holder: Holder) -> String {
    let expires = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(1);
    let token = TokenKey::new(Secret::new(KEY.to_vec())).unwrap().issue(holder, expires).unwrap();
    format!("Bearer {}", token.expose())
}

pub(crate) fn with_tokens() -> TestHub {
    TestHub::with_files(|config, folder| {
        let path = folder.join("tokens.key");
        fs::write(&path, KEY).unwrap();
        config.token_key = Some(path);
    })
}

fn report_as(hub: &TestHub, token: Option<&str>, node: &str) -> u16 {
    let body = serde_json::to_vec(&envelope(node, 1, no_dns())).unwrap();
    let mut headers = vec![("content-type", "application/json")];
    headers.extend(token.map(|token| ("authorization", token)));
    hub.request("POST", "/api/v1/reports", &headers, &body).status
}

#[test]
fn with_tokens_a_node_speaks_for_itself_only() {
    let hub = with_tokens();
    let node = token(Holder::Node("n1".to_owned()));
    assert_eq!(report_as(&hub, None, "n1"), 401);
    assert_eq!(report_as(&hub, Some("Bearer landfall.x.y"), "n1"), 401);
    assert_eq!(report_as(&hub, Some("Basic bm86bm8="), "n1"), 401);
    assert_eq!(report_as(&hub, Some(&node), "n2"), 403);
    assert_eq!(report_as(&hub, Some(&node), "n1"), 200);
    let mine = bundle("n1", &["x".to_owned()]);
    let post = |path: &str| hub.request("POST", path, &[("authorization", node.as_str())], &mine).status;
    assert_eq!((post("/api/v1/nodes/n2/bundles"), post("/api/v1/nodes/n1/bundles")), (403, 200));
    for path in ["/api/v1/fleet", "/api/v1/nodes/n1", "/api/v1/search?q=x", "/api/v1/events", "/metrics"] {
        let get = |token: Option<&str>| {
            let headers: Vec<_> = token.iter().map(|token| ("authorization", *token)).collect();
            hub.request("GET", path, &headers, b"").status
        };
        assert_eq!((get(None), get(Some(&node))), (401, 403), "{path}");
    }
}

#[test]
fn operators_make_tokens_and_viewers_look() {
    let hub = with_tokens();
    let operator = token(Holder::Operator("ann".to_owned()));
    let viewer = token(Holder::Viewer("ben".to_owned()));
    let wish = br#"{"kind":"node","name":"n7","days":1}"#;
    let make = |token: &str| hub.request("POST", "/api/v1/tokens", &[("authorization", token)], wish);
    assert_eq!(make(&viewer).status, 403);
    let made = make(&operator);
    assert_eq!(made.status, 200, "{made:?}");
    let node = format!("Bearer {}", made.json()["token"].as_str().unwrap());
    assert_eq!((report_as(&hub, Some(&node), "n7"), report_as(&hub, Some(&node), "n8")), (200, 403));
    let get = |token: &str| hub.request("GET", "/api/v1/fleet", &[("authorization", token)], b"").status;
    assert_eq!((get(&viewer), get(&operator)), (200, 200));
    let forget =
        |token: &str| hub.request("DELETE", "/api/v1/nodes/n7", &[("authorization", token)], b"").status;
    assert_eq!((forget(&viewer), forget(&node), forget(&operator)), (403, 403, 204));
}

#[test]
fn a_browser_logs_in_with_a_token() {
    let hub = with_tokens();
    let away = hub.get("/");
    assert!(away.status == 303 && away.head.contains("location: /login"), "{away:?}");
    assert!(hub.get("/login").text().contains("type=\"password\""));
    let log_in = |token: &str| {
        let form = format!("token={}", token.trim_start_matches("Bearer "));
        hub.request(
            "POST",
            "/login",
            &[("content-type", "application/x-www-form-urlencoded")],
            form.as_bytes(),
        )
    };
    assert_eq!(log_in("wrong").status, 401);
    assert_eq!(log_in(&token(Holder::Node("n1".to_owned()))).status, 401, "nodes do not look at pages");
    let viewer = token(Holder::Viewer("ben".to_owned()));
    let let_in = log_in(&viewer);
    assert!(let_in.status == 303 && let_in.head.contains("secure; httponly; samesite=strict"), "{let_in:?}");
    let cookie = format!("__Host-landfall={}", viewer.trim_start_matches("Bearer "));
    assert_eq!(hub.request("GET", "/", &[("cookie", &cookie)], b"").status, 200);
    assert_eq!(hub.request("GET", "/", &[("cookie", "__Host-landfall=landfall.x.y")], b"").status, 303);
    let again = hub.request("GET", "/login", &[("cookie", &cookie)], b"").text();
    assert!(again.contains("action=\"/logout\"") && again.contains("ben"), "who is in can leave: {again}");
    assert!(!hub.get("/login").text().contains("/logout"));
}

#[test]
fn a_proxy_is_believed_only_where_it_stands() {
    for (from, expected) in [("127.0.0.1", 200), ("10.0.0.0/8", 401)] {
        let hub = TestHub::with(|config| {
            let from = vec![from.parse().unwrap()];
            config.proxy = Some(Proxy { from, header: "X-Remote-User".to_owned() });
        });
        let get = |headers: &[(&str, &str)]| hub.request("GET", "/api/v1/fleet", headers, b"").status;
        assert_eq!(get(&[("x-remote-user", "ann@example.com")]), expected);
        assert_eq!(get(&[]), 401);
        // If a proxy appends its header to that of the client, the hub cannot distinguish the two values.
        let twice = get(&[("x-remote-user", "eve"), ("x-remote-user", "ann@example.com")]);
        assert!(twice == 401 || twice == 403, "{twice}");
    }
}

#[test]
fn beyond_loopback_nothing_is_served_in_the_open() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let open = Config { listen: "0.0.0.0:0".parse().unwrap(), ..config(&folder) };
    let refused = runtime.block_on(Server::bind(open)).unwrap_err();
    assert!(matches!(refused, HubError::Config(_)), "{refused:?}");
    assert_eq!(
        fs::read_dir(folder.path()).unwrap().count(),
        0,
        "nothing is made before the configuration is good"
    );
}

/// Over TLS, with the certificate of a node and with that of an operator.
#[test]
fn certificates_are_credentials() {
    let authority = Authority::new("test CA", 1).unwrap();
    let served = authority.issue(&Leaf::new("hub", Purpose::Serve).names(["localhost"])).unwrap();
    let hub = TestHub::with_files(|config, folder| {
        let write = |name: &str, text: &str| {
            fs::write(folder.join(name), text).unwrap();
            folder.join(name)
        };
        config.tls = Some(ServerTlsFiles {
            certificate: CertificateFiles {
                certificate: write("hub.crt", &served.certificate),
                key: write("hub.key", served.key.expose()),
            },
            client_ca: Some(write("ca.crt", authority.certificate())),
        });
    });
    let ask = |leaf: Option<(&str, &str)>, request: &str, body: &[u8]| {
        let leaf = leaf.map(|(name, organization)| {
            authority.issue(&Leaf::new(name, Purpose::Call).organization(organization)).unwrap()
        });
        over_tls(&hub, &authority, leaf.as_ref(), request, body)
    };
    let report = serde_json::to_vec(&envelope("n1", 1, running())).unwrap();
    let node = Some(("system:node:n1", "system:nodes"));
    assert_eq!(ask(node, "POST /api/v1/reports", &report).status, 200);
    assert_eq!(ask(Some(("system:node:n2", "system:nodes")), "POST /api/v1/reports", &report).status, 403);
    assert_eq!(ask(None, "POST /api/v1/reports", &report).status, 401);
    assert_eq!(ask(node, "GET /api/v1/fleet", b"").status, 403);
    let fleet = ask(Some(("ann", "landfall:operators")), "GET /api/v1/fleet", b"");
    assert_eq!((fleet.status, fleet.json()["total"].as_u64()), (200, Some(1)));
    assert_eq!(ask(Some(("eve", "system:masters")), "GET /api/v1/fleet", b"").status, 403);
    let stranger = Authority::new("test CA", 1).unwrap();
    let leaf = stranger.issue(&Leaf::new("ann", Purpose::Call).organization("landfall:operators")).unwrap();
    assert_eq!(
        over_tls(&hub, &authority, Some(&leaf), "GET /api/v1/fleet", b"").status,
        0,
        "the handshake fails"
    );
}

fn over_tls(
    hub: &TestHub,
    authority: &Authority,
    leaf: Option<&landfall_pki::KeyedCertificate>,
    request: &str,
    body: &[u8],
) -> Answer {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.certificate().as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let config = match leaf {
        None => builder.with_no_client_auth(),
        Some(leaf) => {
            let chain = vec![CertificateDer::from_pem_slice(leaf.certificate.as_bytes()).unwrap()];
            let key = PrivateKeyDer::from_pem_slice(leaf.key.expose().as_bytes()).unwrap();
            builder.with_client_auth_cert(chain, key).unwrap()
        }
    };
    let name = ServerName::try_from("localhost").unwrap();
    let mut connection = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
    let mut socket = std::net::TcpStream::connect(hub.address).unwrap();
    let mut stream = rustls::Stream::new(&mut connection, &mut socket);
    let head = format!(
        "{request} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let mut answer = Vec::new();
    let sent = std::io::Write::write_all(&mut stream, head.as_bytes())
        .and_then(|()| std::io::Write::write_all(&mut stream, body));
    if sent.is_ok() {
        let _ = std::io::Read::read_to_end(&mut stream, &mut answer);
    }
    Answer::parse(&answer)
}
