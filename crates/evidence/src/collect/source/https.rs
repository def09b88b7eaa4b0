//! Probe of an API endpoint or a registry: name, TCP, TLS with the certificate chain, and HTTP with the
//! server's clock.
//!
//! The chain is collected, not trusted: no secret is sent, and the peer's data is evidence only.

use std::fmt::Write as _;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use landfall_diagnose::Fact;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme, StreamOwned};

use super::endpoints::{self, Endpoint};
use super::http::ask;
use super::trust::Trust;
use super::{NOT_FROM_OUTSIDE, Source, certificates, name_servers};
use crate::collect::host::Host;
use crate::collect::piece::Trouble;
use crate::collect::sink::Sink;

/// Timeout per step; if a step takes longer, the node cannot connect either.
const PATIENCE: Duration = Duration::from_secs(3);

/// Maximum number of addresses tried per name.
const MAX_ADDRESSES: usize = 4;

/// Status line, headers and the start of the body.
const MAX_ANSWER: usize = 8 << 10;

/// Clock differences above this many seconds eventually invalidate certificates and tokens.
const SKEW_WORTH_TELLING: i64 = 5;

pub(super) struct Https {
    pub(super) to: String,
    pub(super) path: String,
    pub(super) whom: Whom,
}

pub(super) enum Whom {
    ApiEndpoints,
    /// The registries in the machine's configuration, and these.
    Registries(Vec<String>),
}

/// Records the chain and accepts it.
#[derive(Debug)]
struct Collector {
    provider: Arc<CryptoProvider>,
    chain: Mutex<Vec<CertificateDer<'static>>>,
}

// === impl Https ===

impl Source for Https {
    fn collect(&self, host: &Host, sink: &mut Sink) -> Result<(), Trouble> {
        if !host.is_this_machine() {
            return Err(Trouble::Skipped(NOT_FROM_OUTSIDE));
        }
        let mut targets = match &self.whom {
            Whom::ApiEndpoints => endpoints::api(host, sink.deadline()),
            Whom::Registries(hosts) => {
                let mut targets = endpoints::registries(host, sink.deadline());
                targets.extend(hosts.iter().filter_map(|host| Endpoint::parse(host, 443)));
                targets
            }
        };
        targets.dedup();
        if targets.is_empty() {
            return Err(Trouble::Skipped(match self.whom {
                Whom::ApiEndpoints => "no configuration of this machine names an API endpoint",
                Whom::Registries(_) => "no configuration of this machine names a registry",
            }));
        }
        let trust = match self.whom {
            Whom::ApiEndpoints => Some(Trust::of(host, sink.deadline())),
            // The runtime's own configuration decides which CA it trusts for a registry.
            Whom::Registries(_) => None,
        };
        let mut reached = Vec::new();
        sink.file(&self.to, "https", crate::collect::sink::Framing::Lines, |file| {
            for target in &targets {
                file.time_left()?;
                let addresses = name_servers::resolve(host, &target.host, PATIENCE);
                let mut text = String::new();
                if addresses.is_empty() {
                    text += &format!("{target}: no name server gave an address\n");
                }
                let mut results = Vec::new();
                for address in addresses.into_iter().take(MAX_ADDRESSES) {
                    let patience = PATIENCE.min(file.time_left()?);
                    let (told, result) = probe(target, address, &self.path, patience, trust.as_ref());
                    text += &told;
                    results.push(result);
                }
                reached.push((target, results));
                file.text(&text)?;
            }
            Ok(())
        });
        if matches!(self.whom, Whom::ApiEndpoints) {
            for (target, results) in reached {
                sink.observe(observed(target, results));
            }
        }
        Ok(())
    }
}

/// Returns the reachability fact: an endpoint is reachable if one of its addresses accepts a connection.
///
/// A name without addresses is a name server failure.
fn observed(target: &Endpoint, results: Vec<Result<(), String>>) -> Option<Fact> {
    let is_reached = results.iter().any(Result::is_ok);
    let error = results.into_iter().find_map(Result::err);
    let error = if is_reached { String::new() } else { error? };
    Some(Fact::Probe { probe: "api".to_owned(), target: target.to_string(), error })
}

fn probe(
    target: &Endpoint,
    address: IpAddr,
    path: &str,
    patience: Duration,
    trust: Option<&Trust>,
) -> (String, Result<(), String>) {
    let address = SocketAddr::new(address, target.port);
    let mut text = String::new();
    let started = Instant::now();
    let stream = match TcpStream::connect_timeout(&address, patience) {
        Ok(stream) => stream,
        Err(error) => {
            let elapsed = started.elapsed().as_millis();
            let told = format!("{target}: dial tcp {address}: {error} ({elapsed} ms)\n");
            return (told, Err(error.to_string()));
        }
    };
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{target}: connected to {address} ({} ms)", started.elapsed().as_millis());
    match over_tls(target, stream, path, patience, trust) {
        Ok(told) => text += &told,
        Err(error) => text += &format!("{target}: {error}\n"),
    }
    (text, Ok(()))
}

fn over_tls(
    target: &Endpoint,
    stream: TcpStream,
    path: &str,
    patience: Duration,
    trust: Option<&Trust>,
) -> io::Result<String> {
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let collector = Arc::new(Collector { provider: Arc::clone(&provider), chain: Mutex::default() });
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let verifier: Arc<dyn ServerCertVerifier> = Arc::<Collector>::clone(&collector);
    let config = config
        .map_err(io::Error::other)?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    let name = ServerName::try_from(target.host.clone()).map_err(io::Error::other)?;
    let connection = ClientConnection::new(Arc::new(config), name).map_err(io::Error::other)?;
    let mut stream = StreamOwned::new(connection, stream);
    let asked = Timestamp::now();
    let answer = ask(&mut stream, target, path, MAX_ANSWER, patience);
    let mut text = String::new();
    let chain = collector.chain.lock().map(|chain| chain.clone()).unwrap_or_default();
    for (number, certificate) in chain.iter().enumerate() {
        let _ =
            write!(text, "{target}: certificate {number} of the chain\n{}", certificates::facts(certificate));
    }
    let clock = answer.as_ref().ok().and_then(|answer| clock(answer));
    if let Some(trust) = trust {
        text += &trust.verdict(target, &chain, asked, clock);
    }
    match answer {
        Ok(answer) => text += &told(target, path, &answer, clock, asked),
        Err(error) => text += &format!("{target}: TLS: {error}\n"),
    }
    Ok(text)
}

/// Formats the status and the offset of the peer's clock.
fn told(target: &Endpoint, path: &str, answer: &[u8], clock: Option<Timestamp>, asked: Timestamp) -> String {
    let answer = String::from_utf8_lossy(answer);
    let mut text = format!("{target}: GET {path}: {}\n", answer.lines().next().unwrap_or("no answer"));
    if let Some(clock) = clock {
        let skew = clock.as_second() - asked.as_second();
        let verdict = if skew.abs() > SKEW_WORTH_TELLING { "clock skew" } else { "clocks agree" };
        text += &format!("{target}: {verdict}: its clock is {skew} s ahead of ours\n");
    }
    text
}

/// Returns the peer's time.
fn clock(answer: &[u8]) -> Option<Timestamp> {
    let answer = String::from_utf8_lossy(answer);
    let headers = answer.lines().skip(1).take_while(|line| !line.trim().is_empty());
    let (_, date) = headers
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("date"))?;
    jiff::fmt::rfc2822::parse(date.trim()).ok().map(|date| date.timestamp())
}

// === impl Collector ===

impl ServerCertVerifier for Collector {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if let Ok(mut chain) = self.chain.lock() {
            chain.push(end_entity.clone().into_owned());
            chain.extend(intermediates.iter().map(|certificate| certificate.clone().into_owned()));
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;
    use std::thread;

    use landfall_pki::{Authority, Leaf, Purpose};
    use rustls::pki_types::pem::PemObject as _;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    use rustls::{ServerConfig, ServerConnection};

    use super::*;

    const SOON: Duration = Duration::from_secs(10);

    #[test]
    fn the_chain_the_answer_and_the_skew_are_told() {
        let authority = Authority::new("test-ca", 30).unwrap();
        let leaf = authority.issue(&Leaf::new("api", Purpose::Serve).names(["localhost"])).unwrap();
        let chain = vec![CertificateDer::from_pem_slice(leaf.certificate.as_bytes()).unwrap()];
        let key = PrivateKeyDer::from_pem_slice(leaf.key.expose().as_bytes()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config =
            ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let config = config.with_no_client_auth().with_single_cert(chain, key).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let serve = thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut stream = StreamOwned::new(ServerConnection::new(Arc::new(config)).unwrap(), stream);
            let mut buffer = [0; 1024];
            let count = stream.read(&mut buffer).unwrap();
            assert!(buffer[..count].starts_with(b"GET /version HTTP/1.1\r\n"));
            let answer = b"HTTP/1.1 401 Unauthorized\r\nDate: Sat, 01 Jan 2000 00:00:00 GMT\r\n\r\n";
            stream.write_all(answer).unwrap();
            stream.conn.send_close_notify();
            stream.flush().unwrap();
        });
        let target = Endpoint { host: "localhost".to_owned(), port };
        let (text, result) = probe(&target, "127.0.0.1".parse().unwrap(), "/version", SOON, None);
        serve.join().unwrap();
        assert_eq!(result, Ok(()));
        assert!(text.contains(&format!("localhost:{port}: connected to 127.0.0.1:{port}")), "{text}");
        assert!(text.contains("issuer: CN=test-ca") && text.contains("names: localhost"), "{text}");
        assert!(text.contains("GET /version: HTTP/1.1 401 Unauthorized"), "{text}");
        assert!(text.contains("clock skew: its clock is -"), "{text}");
    }

    #[test]
    fn a_closed_port_and_a_peer_without_tls_are_told() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let target = Endpoint { host: "127.0.0.1".to_owned(), port };
        let serve = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 1024]);
            stream.write_all(b"SSH-2.0-OpenSSH_9.2\r\n").unwrap();
        });
        let (text, accepted) = probe(&target, "127.0.0.1".parse().unwrap(), "/version", SOON, None);
        serve.join().unwrap();
        assert!(text.contains(": TLS: "), "{text}");
        let (text, refused) = probe(&target, "127.0.0.1".parse().unwrap(), "/version", SOON, None);
        assert!(text.contains("dial tcp") && text.contains("refused"), "{text}");
        let error = |results| match observed(&target, results) {
            Some(Fact::Probe { error, .. }) => error,
            other => panic!("{other:?}"),
        };
        assert_eq!(error(vec![refused.clone(), accepted]), "", "one address is enough");
        assert!(error(vec![refused]).contains("refused"));
        assert_eq!(observed(&target, Vec::new()), None);
    }
}
