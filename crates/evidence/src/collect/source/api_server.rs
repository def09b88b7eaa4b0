//! API server client with the credentials of a kubeconfig of this machine: one request, one connection, one
//! deadline.
//!
//! Unlike a probe, it sends credentials, so the server must authenticate itself. No program named in a
//! kubeconfig is run.

use std::io::{self, BufRead as _, BufReader, Read, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use landfall_cluster::{Credentials, Identity};
use landfall_model::{Secret, chain};
use landfall_net::{ServerTrust, client_config, parse_roots};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};

use super::endpoints::Endpoint;
use super::name_servers;
use crate::collect::host::Host;

/// Timeout for connecting; a slower server is skipped.
const CONNECT: Duration = Duration::from_secs(3);

/// Maximum size of status line and headers; Go servers send less.
const MAX_HEAD: u64 = 64 << 10;

/// An API server for which this machine has credentials.
pub(super) struct ApiServer {
    endpoint: Endpoint,
    /// Path prefix of the server URL, without a trailing slash.
    prefix: String,
    name: ServerName<'static>,
    tls: Arc<ClientConfig>,
    token: Option<Secret<String>>,
}

/// A response: the status, and the body still to be read.
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) body: Box<dyn Read>,
}

/// A connection whose reads end at the deadline, even if data arrives slowly.
struct Hurried {
    stream: StreamOwned<ClientConnection, TcpStream>,
    deadline: Instant,
}

// === impl ApiServer ===

impl ApiServer {
    /// Returns the server of a kubeconfig, or the reason why it cannot be queried.
    pub(super) fn of(kubeconfig: &Path) -> Result<Self, String> {
        let credentials =
            Credentials::from_kubeconfig(Some(kubeconfig)).map_err(|error| chain(&error).to_string())?;
        if credentials.proxy.is_some() {
            return Err("it leads through a proxy".to_owned());
        }
        let authority = credentials.authority.as_deref().filter(|_| !credentials.skip_verification);
        let Some(authority) = authority else {
            return Err("it does not specify a CA to verify the server".to_owned());
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

    /// Sends a GET request. The response ends with the connection, so that its body can be streamed.
    pub(super) fn get(&self, host: &Host, path: &str, accept: &str, deadline: Instant) -> io::Result<Answer> {
        let stream = self.connect(host, deadline)?;
        let connection =
            ClientConnection::new(Arc::clone(&self.tls), self.name.clone()).map_err(io::Error::other)?;
        let mut stream = Hurried { stream: StreamOwned::new(connection, stream), deadline };
        let authorization = self.token.as_ref();
        let authorization = authorization
            .map(|token| format!("Authorization: Bearer {}\r\n", token.expose()))
            .unwrap_or_default();
        // HTTP/1.0: no chunked encoding, and the end of the connection ends the response.
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
    let invalid = |error| chain(&error).to_string();
    let roots = parse_roots(Path::new("certificate-authority-data"), authority).map_err(invalid)?;
    let identity = identity.map(|identity| landfall_net::Identity {
        certificate: &identity.certificate,
        key: identity.key.expose(),
        certificate_path: Path::new("client-certificate-data"),
        key_path: Path::new("client-key-data"),
    });
    client_config(ServerTrust::Roots(roots), identity, &[]).map_err(invalid)
}

/// Reads the response head and returns the status.
fn head(reader: &mut BufReader<Hurried>) -> io::Result<u16> {
    let nonsense = || io::Error::new(io::ErrorKind::InvalidData, "the response is not HTTP");
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
