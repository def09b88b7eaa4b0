//! An API server asked with the credentials of a kubeconfig of this machine: one question, one connection, one deadline.
//!
//! Unlike a probe, this sends credentials, so the server must prove who it is. Nothing that a kubeconfig names is run.

use std::io::{self, BufRead as _, BufReader, Read, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use landfall_cluster::{Credentials, Identity};
use landfall_model::{Secret, chain};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::endpoints::Endpoint;
use super::name_servers;
use crate::collect::host::Host;

/// A server that does not accept by then is not the one to wait for.
const CONNECT: Duration = Duration::from_secs(3);

/// Status line and headers; Go's servers send less than one of these.
const MAX_HEAD: u64 = 64 << 10;

/// An API server this machine has credentials for.
pub(super) struct ApiServer {
    endpoint: Endpoint,
    /// What stands behind the host in its URL, without a slash at the end.
    prefix: String,
    name: ServerName<'static>,
    tls: Arc<ClientConfig>,
    token: Option<Secret<String>>,
}

/// What came back: a status, and a body that is still to be read.
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) body: Box<dyn Read>,
}

/// A connection whose every read ends at the deadline, however slowly bytes trickle.
struct Hurried {
    stream: StreamOwned<ClientConnection, TcpStream>,
    deadline: Instant,
}

// === impl ApiServer ===

impl ApiServer {
    /// The server of a kubeconfig, or why it cannot be asked.
    pub(super) fn of(kubeconfig: &Path) -> Result<Self, String> {
        let credentials =
            Credentials::from_kubeconfig(Some(kubeconfig)).map_err(|error| chain(&error).to_string())?;
        if credentials.proxy.is_some() {
            return Err("it leads through a proxy".to_owned());
        }
        let authority = credentials.authority.as_deref().filter(|_| !credentials.skip_verification);
        let Some(authority) = authority else {
            return Err("it names no authority to know the server by".to_owned());
        };
        let server = credentials.server.as_deref().unwrap_or_default();
        let address = server.strip_prefix("https://").ok_or("its server has no `https` URL")?;
        let endpoint = Endpoint::parse(server, 443).ok_or("its server has no valid URL")?;
        let prefix = address.find('/').map_or("", |slash| address[slash..].trim_end_matches('/'));
        let name = credentials.server_name.clone().unwrap_or_else(|| endpoint.host.clone());
        Ok(Self {
            prefix: prefix.to_owned(),
            name: ServerName::try_from(name).map_err(|error| error.to_string())?,
            tls: Arc::new(tls(authority, credentials.identity.as_ref())?),
            token: credentials.token,
            endpoint,
        })
    }

    /// Asks for a path. The answer ends with the connection, so that its body can be read as it comes.
    pub(super) fn get(&self, host: &Host, path: &str, accept: &str, deadline: Instant) -> io::Result<Answer> {
        let stream = self.connect(host, deadline)?;
        let connection =
            ClientConnection::new(Arc::clone(&self.tls), self.name.clone()).map_err(io::Error::other)?;
        let mut stream = Hurried { stream: StreamOwned::new(connection, stream), deadline };
        let authorization = self.token.as_ref();
        let authorization = authorization
            .map(|token| format!("Authorization: Bearer {}\r\n", token.expose()))
            .unwrap_or_default();
        // Version 1.0: no chunks, and the end of the connection is the end of the answer.
        let request = Secret::new(format!(
            "GET {}{path} HTTP/1.0\r\nHost: {}\r\nAccept: {accept}\r\nUser-Agent: landfall\r\n{authorization}\r\n",
            self.prefix, self.endpoint
        ));
        stream.hurry()?;
        stream.stream.write_all(request.expose().as_bytes())?;
        let mut reader = BufReader::new(stream);
        let status = head(&mut reader)?;
        Ok(Answer { status, body: Box::new(reader) })
    }

    fn connect(&self, host: &Host, deadline: Instant) -> io::Result<TcpStream> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "no name server gave an address");
        for address in name_servers::resolve(host, &self.endpoint.host, CONNECT) {
            let left = deadline.saturating_duration_since(Instant::now()).min(CONNECT);
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            match TcpStream::connect_timeout(&SocketAddr::new(address, self.endpoint.port), left) {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

fn tls(authority: &[u8], identity: Option<&Identity>) -> Result<ClientConfig, String> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(authority) {
        let certificate = certificate.map_err(|error| error.to_string())?;
        roots.add(certificate).map_err(|error| error.to_string())?;
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots);
    let Some(identity) = identity else { return Ok(config.with_no_client_auth()) };
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&identity.certificate).collect();
    let certificates = certificates.map_err(|error| error.to_string())?;
    let key = PrivateKeyDer::from_pem_slice(identity.key.expose()).map_err(|error| error.to_string())?;
    config.with_client_auth_cert(certificates, key).map_err(|error| error.to_string())
}

/// Reads up to the body and returns the status.
fn head(reader: &mut BufReader<Hurried>) -> io::Result<u16> {
    let nonsense = || io::Error::new(io::ErrorKind::InvalidData, "the answer is no HTTP");
    let mut head = reader.by_ref().take(MAX_HEAD);
    let mut line = String::new();
    head.read_line(&mut line)?;
    let status = line.strip_prefix("HTTP/1.").and_then(|rest| rest.get(2..5)?.parse().ok());
    let status = status.ok_or_else(nonsense)?;
    loop {
        line.clear();
        if head.read_line(&mut line)? == 0 {
            return Err(nonsense());
        }
        if line.trim_end().is_empty() {
            return Ok(status);
        }
    }
}

// === impl Hurried ===

impl Hurried {
    fn hurry(&self) -> io::Result<()> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.sock.set_read_timeout(Some(left))?;
        self.stream.sock.set_write_timeout(Some(left))
    }
}

impl Read for Hurried {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.hurry()?;
        self.stream.read(buffer)
    }
}
