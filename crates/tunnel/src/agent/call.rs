//! The call to one server: connect, identify this agent, identify the server.

use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::Context;
use std::time::{Duration, Instant};

use landfall_net::TlsError;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;

use crate::config::AgentConfig;
use crate::grpc;
use crate::mux::{FIRST_CREDIT, FLOW_HEADER};
use crate::server::granted;
use crate::socket::Network;
use crate::transport::{Driven, Lost, ReadAhead, TLS_WRITE, Transport};
use landfall_http2::{Connection, Event, Headers, Limits, Role, StreamId};

/// Timeout from the first packet to the server's response. Upstream has none.
const CALL_LIMIT: Duration = Duration::from_secs(20);
/// Flow-control windows of a server. The credit of each tunnel bounds the memory that its data occupies.
const WINDOW: u32 = 2 * 1024 * 1024;
const OWN_WINDOW: u32 = 16 * 1024 * 1024;

pub(super) trait Socket: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Socket for S {}

/// A server that has responded.
pub(super) struct Called {
    pub(super) transport: Transport<Box<dyn Socket>>,
    pub(super) stream: StreamId,
    pub(super) server_id: String,
    pub(super) server_count: usize,
    /// Credit that the server grants each tunnel; `None` for upstream servers.
    pub(super) credit: Option<u64>,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum CallError {
    #[error("cannot connect to {address}")]
    Connect { address: String, source: io::Error },
    #[error("cannot use the certificates")]
    Tls(#[source] TlsError),
    #[error("`{0}` is not a server's name")]
    Name(String),
    #[error("the handshake with {address} failed")]
    Handshake { address: String, source: io::Error },
    #[error("cannot read the token")]
    Token(#[source] io::Error),
    #[error("the server was lost before it answered")]
    Lost(#[source] Lost),
    #[error("the server refuses: {0}")]
    Refused(String),
    #[error("the server does not say who it is")]
    Nameless,
    #[error("no answer within {} s", CALL_LIMIT.as_secs())]
    Timeout,
}

/// Waits for the response of the server.
struct Waiting;

/// Calls a server. With several addresses, each attempt starts at the next one.
pub(super) async fn call<N: Network>(
    config: &AgentConfig,
    network: &N,
    attempt: usize,
) -> Result<Called, CallError> {
    let called = tokio::time::timeout(CALL_LIMIT, call_for_ever(config, network, attempt)).await;
    called.unwrap_or(Err(CallError::Timeout))
}

async fn call_for_ever<N: Network>(
    config: &AgentConfig,
    network: &N,
    attempt: usize,
) -> Result<Called, CallError> {
    let (socket, name) = connect(config, network, attempt).await?;
    let address = format!("{}:{}", bracketed(&name), config.proxy_server_port);
    let (socket, scheme): (Box<dyn Socket>, _) = match &config.tls {
        None => (Box::new(socket), "http"),
        Some(files) => {
            // Read at each call, so that rotated files apply.
            let tls = files.read().map_err(CallError::Tls)?;
            let name = ServerName::try_from(name.clone()).map_err(|_| CallError::Name(name))?;
            let shaken = TlsConnector::from(Arc::new(tls)).connect(name, ReadAhead::new(socket)).await;
            let mut shaken =
                shaken.map_err(|source| CallError::Handshake { address: address.clone(), source })?;
            shaken.get_mut().1.set_buffer_limit(Some(TLS_WRITE));
            (Box::new(shaken), "https")
        }
    };
    let limits = Limits {
        stream_window: WINDOW,
        connection_window: WINDOW,
        keepalive: Some(config.keepalive_time).filter(|time| !time.is_zero()),
        ..Limits::default()
    };
    let mut transport = Transport::new(socket, Connection::new(Role::Client, limits));
    let stream = transport.connection.open(&request(config, scheme, &address)?).ok_or(CallError::Nameless)?;
    let headers =
        transport.drive(&mut Waiting).await.map_err(CallError::Lost)?.map_err(CallError::Refused)?;
    let text = |name| headers.get(name).map(|value| String::from_utf8_lossy(value).into_owned());
    let server_id = text("serverid").filter(|id| !id.is_empty()).ok_or(CallError::Nameless)?;
    let server_count = text("servercount").and_then(|count| count.parse().ok()).unwrap_or(1);
    let credit = granted(&headers);
    if credit.is_some() {
        transport.connection.grow_windows(stream, OWN_WINDOW);
    }
    Ok(Called { transport, stream, server_id, server_count, credit })
}

/// Connects to the first address that accepts, and returns its name. It tries all addresses of all names, so that the
/// agent reaches servers behind one name without a load balancer.
async fn connect<N: Network>(
    config: &AgentConfig,
    network: &N,
    attempt: usize,
) -> Result<(N::Socket, String), CallError> {
    let mut failure = CallError::Name(config.proxy_server_host.clone());
    let mut candidates = Vec::new();
    for name in config.server_names() {
        let address = format!("{}:{}", bracketed(name), config.proxy_server_port);
        match network.resolve(&address).await {
            Ok(found) => candidates.extend(found.into_iter().map(|address| (address, name))),
            Err(source) => failure = CallError::Connect { address, source },
        }
    }
    if !candidates.is_empty() {
        let first = attempt % candidates.len();
        candidates.rotate_left(first);
    }
    for (candidate, name) in candidates {
        match network.connect(candidate).await {
            Ok(socket) => return Ok((socket, name.to_owned())),
            Err(source) => failure = CallError::Connect { address: candidate.to_string(), source },
        }
    }
    Err(failure)
}

fn request(config: &AgentConfig, scheme: &str, authority: &str) -> Result<Headers, CallError> {
    let mut headers =
        grpc::request(scheme, authority, "/AgentService/Connect").with("agentid", &config.agent_id);
    if !config.agent_identifiers.as_str().is_empty() {
        headers = headers.with("agentidentifiers", config.agent_identifiers.as_str());
    }
    if let Some(path) = &config.service_account_token_path {
        let token = landfall_model::Secret::new(std::fs::read_to_string(path).map_err(CallError::Token)?);
        // A newline at the end of the file is not part of the token.
        headers = headers.with("authorization", format!("Bearer {}", token.expose().trim()));
    }
    Ok(headers.with(FLOW_HEADER, FIRST_CREDIT.to_string()))
}

fn bracketed(host: &str) -> String {
    if host.contains(':') && !host.starts_with('[') { format!("[{host}]") } else { host.to_owned() }
}

// === impl Waiting ===

impl Driven for Waiting {
    type End = Result<Headers, String>;
    const NEEDS_TICKS: bool = false;

    fn on_event(&mut self, _: &mut Connection, event: Event, _: Instant) -> ControlFlow<Self::End> {
        match event {
            Event::Headers { headers, end, .. } => ControlFlow::Break(match grpc::failure(&headers) {
                Some(reason) => Err(reason),
                None if end => Err("end of stream".to_owned()),
                None => Ok(headers),
            }),
            Event::Reset { code, .. } | Event::GoAway { code, .. } => {
                ControlFlow::Break(Err(code.to_string()))
            }
            Event::Data { .. } => ControlFlow::Continue(()),
        }
    }

    fn pump(&mut self, _: &mut Connection, _: &mut Context<'_>) -> ControlFlow<Self::End> {
        ControlFlow::Continue(())
    }

    fn tick(&mut self, _: &mut Connection, _: Instant) -> ControlFlow<Self::End> {
        ControlFlow::Continue(())
    }
}
