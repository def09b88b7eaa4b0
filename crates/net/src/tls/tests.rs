use landfall_pki::{Authority, Leaf, Purpose};
use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection};

use super::*;

struct Directory(tempfile::TempDir, Authority);

impl Directory {
    fn new() -> Self {
        let directory = Self(tempfile::tempdir().unwrap(), Authority::new("test", 1).unwrap());
        std::fs::write(directory.path("ca.crt"), directory.1.certificate()).unwrap();
        directory
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn issue(&self, name: &str, names: &[&str]) -> CertificateFiles {
        let leaf = Leaf::new(name, Purpose::Peer).names(names.iter().copied());
        let issued = self.1.issue(&leaf).unwrap();
        let files = CertificateFiles {
            certificate: self.path(&format!("{name}.crt")),
            key: self.path(&format!("{name}.key")),
        };
        std::fs::write(&files.certificate, issued.certificate).unwrap();
        std::fs::write(&files.key, issued.key.expose()).unwrap();
        files
    }

    fn client(&self, certificate: Option<CertificateFiles>) -> ClientConfig {
        let tls = ClientTls { ca: Some(self.path("ca.crt")), certificate, protocols: vec![b"h2".to_vec()] };
        tls.read().unwrap()
    }
}

fn reloading(certificates: &[CertificateFiles]) -> Arc<Reloading<ServerConfig>> {
    let paths = certificates.iter().flat_map(CertificateFiles::paths).collect();
    let certificates = certificates.to_vec();
    Reloading::load(paths, move |files| {
        let policy = TlsPolicy::default();
        let clients = ClientAuth::Request;
        let options =
            ServerTlsOptions { certificates: &certificates, clients, protocols: &[b"h2"], policy: &policy };
        server_config(files, &options)
    })
    .unwrap()
}

/// Performs a handshake in memory; `None` if it fails.
fn handshake(
    server: Arc<ServerConfig>,
    client: ClientConfig,
    name: &'static str,
) -> Option<(ClientConnection, ServerConnection)> {
    let mut server = ServerConnection::new(server).unwrap();
    let mut client = ClientConnection::new(Arc::new(client), name.try_into().unwrap()).unwrap();
    for _ in 0..10 {
        let mut bytes = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut bytes).unwrap();
        }
        while !bytes.is_empty() {
            let read = server.read_tls(&mut bytes.as_slice()).unwrap();
            bytes.drain(..read);
            server.process_new_packets().ok()?;
        }
        while server.wants_write() {
            server.write_tls(&mut bytes).unwrap();
        }
        while !bytes.is_empty() {
            let read = client.read_tls(&mut bytes.as_slice()).unwrap();
            bytes.drain(..read);
            client.process_new_packets().ok()?;
        }
    }
    assert!(!client.is_handshaking() && !server.is_handshaking());
    Some((client, server))
}

#[test]
fn certificate_is_selected_by_sni_and_unknown_client_certificate_is_accepted() {
    let directory = Directory::new();
    let certificates = [
        directory.issue("service", &["kubernetes", "127.0.0.1"]),
        directory.issue("lb", &["api.example.org", "*.apps.example.org"]),
    ];
    let server = reloading(&certificates);
    let [service, lb] = certificates.map(|files| CertificateDer::from_pem_file(files.certificate).unwrap());
    for (name, expected) in [
        ("kubernetes", &service),
        ("api.example.org", &lb),
        ("API.example.org", &lb),
        ("console.apps.example.org", &lb),
        ("127.0.0.1", &service),
    ] {
        let (client, server) = handshake(server.get(), directory.client(None), name).unwrap();
        assert_eq!(&client.peer_certificates().unwrap()[0], expected, "{name}");
        assert!(server.peer_certificates().is_none(), "{name}");
    }
    // The gateway verifies client certificates after the handshake.
    let unknown = Directory::new().issue("unknown", &[]);
    assert!(ClientTls { certificate: Some(unknown), ..ClientTls::default() }.read().is_err(), "deleted");
    let other = Directory::new();
    let client = directory.client(Some(other.issue("unknown", &[])));
    let (_, server) = handshake(server.get(), client, "kubernetes").unwrap();
    assert_eq!(server.peer_certificates().unwrap().len(), 1);
}

#[test]
fn client_certificates_are_verified_against_the_client_ca() {
    let (directory, other) = (Directory::new(), Directory::new());
    let files = ServerTlsFiles {
        certificate: directory.issue("service", &["kubernetes"]),
        client_ca: Some(directory.path("ca.crt")),
    };
    let load = |clients| files.clone().load(clients, &[b"h2"], TlsPolicy::default()).unwrap().get();
    let (required, optional) = (load(ClientCertificates::Required), load(ClientCertificates::Optional));
    let known = || directory.client(Some(directory.issue("node", &[])));
    let unknown = || directory.client(Some(other.issue("node", &[])));
    let accepts =
        |server: &Arc<ServerConfig>, client| handshake(Arc::clone(server), client, "kubernetes").is_some();
    assert!(accepts(&required, known()) && accepts(&optional, known()));
    assert!(!accepts(&required, unknown()) && !accepts(&optional, unknown()));
    assert!(!accepts(&required, directory.client(None)) && accepts(&optional, directory.client(None)));
}

#[test]
fn policy_limits_versions_and_cipher_suites_of_the_handshake() {
    let directory = Directory::new();
    let negotiated = |min_version, suite: &str, versions: &[&'static rustls::SupportedProtocolVersion]| {
        let cipher_suites = Some(suite.to_owned()).filter(|name| !name.is_empty()).into_iter().collect();
        let files =
            ServerTlsFiles { certificate: directory.issue("server", &["localhost"]), client_ca: None };
        let policy = TlsPolicy { min_version, cipher_suites };
        let server = files.load(ClientCertificates::Optional, &[], policy).unwrap().get();
        let client = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(
                parse_roots(Path::new("ca"), directory.1.certificate().as_bytes()).unwrap(),
            )
            .with_no_client_auth();
        let (_, server) = handshake(server, client, "localhost")?;
        server.negotiated_cipher_suite().and_then(|suite| suite.suite().as_str()).map(str::to_owned)
    };
    let (old, both): (&[_], &[_]) =
        (&[&rustls::version::TLS12], &[&rustls::version::TLS13, &rustls::version::TLS12]);
    for suite in [policy::EXAMPLE_SUITE, "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"] {
        assert_eq!(negotiated(TlsVersion::Tls12, suite, old).as_deref(), Some(suite));
    }
    // The key is an elliptic curve key, so an RSA suite leaves no common suite in TLS 1.2.
    let rsa = "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256";
    assert_eq!(negotiated(TlsVersion::Tls12, rsa, old), None);
    let is_tls13 = |suite: Option<String>| suite.is_some_and(|suite| suite.starts_with("TLS13_"));
    assert!(is_tls13(negotiated(TlsVersion::Tls12, rsa, both)));
    assert_eq!(negotiated(TlsVersion::Tls13, "", old), None);
    assert!(is_tls13(negotiated(TlsVersion::Tls13, "", both)));
}

#[test]
fn changed_files_are_reloaded_and_invalid_ones_are_ignored() {
    let directory = Directory::new();
    let files = directory.issue("service", &["kubernetes"]);
    let server = reloading(std::slice::from_ref(&files));
    let first = server.get();
    server.reload();
    assert!(Arc::ptr_eq(&first, &server.get()));
    let renewed = directory.issue("service", &["kubernetes"]);
    server.reload();
    let second = server.get();
    assert!(!Arc::ptr_eq(&first, &second));
    std::fs::write(&renewed.key, "no key").unwrap();
    server.reload();
    assert!(Arc::ptr_eq(&second, &server.get()));
}

#[test]
fn server_without_certificate_is_rejected() {
    let policy = TlsPolicy::default();
    let options =
        ServerTlsOptions { certificates: &[], clients: ClientAuth::None, protocols: &[], policy: &policy };
    assert!(matches!(server_config(&FileSnapshot::read(&[]), &options), Err(TlsError::NoCertificate)));
}
