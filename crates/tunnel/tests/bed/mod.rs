//! Tunnels between landfall's or upstream's servers and agents, for tests.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::allow_attributes,
    clippy::unwrap_used,
    reason = "each test file uses a part of it"
)]

pub mod client;
pub mod endpoint;
pub mod kubelet;
pub mod namespace;

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use landfall_pki::{Authority, Leaf, Purpose};
use landfall_testkit::{Binary, Need, Process, eventually, free_port};
use landfall_tunnel::agent::{Agent, AgentView};
use landfall_tunnel::config::{
    AgentConfig, CertificateFiles, ClientTls, DEFAULT_UDS_PERMISSIONS, Frontend, Mode, ServerConfig,
    ServerTlsFiles,
};
use landfall_tunnel::server::{Authenticate, Server, ServerView};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

use self::client::{Client, connect};
use self::endpoint::Endpoint;
use self::namespace::Namespace;

pub const SOON: Duration = Duration::from_secs(20);
/// Timeout for cleanup: client, server and agent discard undeliverable data one after another.
const GONE: Duration = Duration::from_secs(60);
pub const UPSTREAM: &[Need] =
    &[Need::Built(Binary::KonnectivityServer), Need::Built(Binary::KonnectivityAgent)];

/// The implementations of server and agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairing {
    OursOurs,
    OurServer,
    OurAgent,
}

/// Directory of certificates and sockets.
pub struct Bed {
    pub runtime: Runtime,
    pub directory: TempDir,
    pub authority: Authority,
    stop: CancellationToken,
}

/// A running landfall server.
pub struct OurServer {
    pub view: ServerView,
    pub agent_port: u16,
    pub frontend: Option<SocketAddr>,
    pub stop: CancellationToken,
}

/// A server, an agent, and a frontend.
pub struct Plane {
    pub bed: Bed,
    pub mode: Mode,
    pub server: Option<ServerView>,
    pub agent: Option<AgentView>,
    processes: Vec<Process>,
}

impl Pairing {
    pub const ALL: [Self; 3] = [Self::OursOurs, Self::OurServer, Self::OurAgent];
}

impl Bed {
    pub fn new() -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("landfall-tunnel-").tempdir()?;
        let authority = Authority::new("tunnel", 7)?;
        let bed = Self {
            runtime: tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?,
            directory,
            authority,
            stop: CancellationToken::new(),
        };
        std::fs::write(bed.file("ca.crt"), bed.authority.certificate())?;
        bed.issue("server", &Leaf::new("server", Purpose::Serve).names(["127.0.0.1", "localhost"]))?;
        bed.issue("agent", &Leaf::new("agent", Purpose::Call))?;
        bed.issue("client", &Leaf::new("client", Purpose::Call))?;
        Ok(bed)
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn issue(&self, name: &str, leaf: &Leaf) -> Result<()> {
        let pair = self.authority.issue(leaf)?;
        std::fs::write(self.file(&format!("{name}.crt")), &pair.certificate)?;
        std::fs::write(self.file(&format!("{name}.key")), pair.key.expose())?;
        Ok(())
    }

    pub fn socket(&self) -> PathBuf {
        self.file("frontend.sock")
    }

    pub fn serving(&self) -> ServerTlsFiles {
        ServerTlsFiles {
            certificate: CertificateFiles {
                certificate: self.file("server.crt"),
                key: self.file("server.key"),
            },
            client_ca: Some(self.file("ca.crt")),
        }
    }

    pub fn server_config(&self, mode: Mode) -> ServerConfig {
        let frontend = Frontend::Unix {
            path: self.socket(),
            delete_existing: true,
            permissions: DEFAULT_UDS_PERMISSIONS,
        };
        ServerConfig {
            mode,
            agent_bind_address: IpAddr::V4(Ipv4Addr::LOCALHOST),
            agent_port: 0,
            agent_tls: Some(self.serving()),
            ..ServerConfig::new(frontend, "our-server".to_owned())
        }
    }

    pub fn start_server(&self, config: ServerConfig) -> Result<OurServer> {
        self.start_server_with(config, None)
    }

    pub fn start_server_with(
        &self,
        config: ServerConfig,
        authenticate: Option<Arc<dyn Authenticate>>,
    ) -> Result<OurServer> {
        let server = self.runtime.block_on(Server::bind(config, authenticate))?;
        let (view, agent_port, frontend) =
            (server.view(), server.agent_address()?.port(), server.frontend_address());
        let stop = self.stop.child_token();
        self.runtime.spawn(server.run(stop.clone()));
        Ok(OurServer { view, agent_port, frontend, stop })
    }

    pub fn agent_config(&self, port: u16, id: &str) -> AgentConfig {
        AgentConfig {
            proxy_server_port: port,
            tls: Some(ClientTls {
                ca: Some(self.file("ca.crt")),
                certificate: Some(CertificateFiles {
                    certificate: self.file("agent.crt"),
                    key: self.file("agent.key"),
                }),
                protocols: vec![b"h2".to_vec()],
            }),
            sync: AgentConfig::sync(Duration::from_millis(100), Duration::from_secs(10)).unwrap(),
            ..AgentConfig::new(id.to_owned())
        }
    }

    pub fn start_agent(&self, config: AgentConfig) -> (AgentView, CancellationToken) {
        let agent = self.runtime.block_on(Agent::bind(config)).unwrap();
        let (view, stop) = (agent.view(), self.stop.child_token());
        self.runtime.spawn(agent.run(stop.clone()));
        (view, stop)
    }

    /// Runs an agent whose endpoints are in a network namespace.
    pub fn start_agent_in(&self, namespace: &Namespace, config: AgentConfig) -> Result<AgentView> {
        let (stop, (tell, told)) = (self.stop.child_token(), std::sync::mpsc::channel());
        let name = namespace.name().to_owned();
        std::thread::spawn(move || {
            let started = namespace::enter(&name).and_then(|()| {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
                let agent = runtime.block_on(Agent::bind(config))?;
                Ok((runtime, agent))
            });
            match started {
                Ok((runtime, agent)) => {
                    let _ = tell.send(Ok(agent.view()));
                    runtime.block_on(agent.run(stop));
                }
                Err(error) => {
                    let _ = tell.send(Err(error));
                }
            }
        });
        told.recv().context("the agent's thread")?
    }

    pub fn upstream_server(&self, mode: Mode) -> Result<(Process, u16)> {
        self.upstream_server_with(mode, IpAddr::V4(Ipv4Addr::LOCALHOST), None)
    }

    /// Starts upstream's server. Agents connect to `bind`; the frontend is the socket, or a port with TLS.
    pub fn upstream_server_with(
        &self,
        mode: Mode,
        bind: IpAddr,
        frontend: Option<u16>,
    ) -> Result<(Process, u16)> {
        let (agents, health, admin) = (free_port()?, free_port()?, free_port()?);
        let mode = match mode {
            Mode::Grpc => "grpc",
            Mode::HttpConnect => "http-connect",
        };
        let (certificate, key, authority) = (
            self.file("server.crt").display().to_string(),
            self.file("server.key").display().to_string(),
            self.file("ca.crt").display().to_string(),
        );
        let mut flags = vec![
            format!("--mode={mode}"),
            format!("--agent-bind-address={bind}"),
            format!("--agent-port={agents}"),
            format!("--health-port={health}"),
            format!("--admin-port={admin}"),
            format!("--cluster-cert={certificate}"),
            format!("--cluster-key={key}"),
            format!("--cluster-ca-cert={authority}"),
        ];
        flags.extend(match frontend {
            None => vec![format!("--uds-name={}", self.socket().display()), "--server-port=0".to_owned()],
            Some(port) => vec![
                format!("--server-port={port}"),
                "--server-bind-address=127.0.0.1".to_owned(),
                format!("--server-cert={certificate}"),
                format!("--server-key={key}"),
                format!("--server-ca-cert={authority}"),
            ],
        });
        let program = Binary::KonnectivityServer.path()?;
        let process = Process::start("proxy-server", &program, self.directory.path(), |command| {
            command.args(flags);
        })?;
        eventually("the upstream server to listen", SOON, || TcpStream::connect((bind, agents)).ok())?;
        Ok((process, agents))
    }

    pub fn upstream_agent(&self, port: u16, id: &str) -> Result<Process> {
        let flags = self.upstream_agent_flags("127.0.0.1", port, id)?;
        Process::start(id, &Binary::KonnectivityAgent.path()?, self.directory.path(), |command| {
            command.args(flags);
        })
    }

    /// Runs upstream's agent in the network namespace of its endpoints.
    pub fn upstream_agent_in(&self, namespace: &Namespace, port: u16) -> Result<Process> {
        let flags = self.upstream_agent_flags(&namespace.host().to_string(), port, "agent")?;
        let program = Binary::KonnectivityAgent.path()?;
        Process::start("agent", Path::new("ip"), self.directory.path(), |command| {
            command.args(["netns", "exec", namespace.name()]).arg(program).args(flags);
        })
    }

    fn upstream_agent_flags(&self, host: &str, port: u16, id: &str) -> Result<Vec<String>> {
        let (health, admin) = (free_port()?, free_port()?);
        Ok(vec![
            format!("--proxy-server-host={host}"),
            format!("--proxy-server-port={port}"),
            format!("--ca-cert={}", self.file("ca.crt").display()),
            format!("--agent-cert={}", self.file("agent.crt").display()),
            format!("--agent-key={}", self.file("agent.key").display()),
            format!("--agent-id={id}"),
            format!("--health-server-port={health}"),
            format!("--admin-server-port={admin}"),
        ])
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Drop for Plane {
    fn drop(&mut self) {
        for process in &self.processes {
            // Upstream's agent does not stop on SIGTERM.
            let _ = process.signal(rustix::process::Signal::KILL);
        }
    }
}

impl Plane {
    /// Starts both and waits until a tunnel can be opened.
    pub fn start(pairing: Pairing, mode: Mode) -> Result<Self> {
        let bed = Bed::new()?;
        let mut plane = Self { bed, mode, server: None, agent: None, processes: Vec::new() };
        let port = if pairing == Pairing::OurAgent {
            let (process, port) = plane.bed.upstream_server(mode)?;
            plane.processes.push(process);
            port
        } else {
            let server = plane.bed.start_server(plane.bed.server_config(mode))?;
            plane.server = Some(server.view);
            server.agent_port
        };
        if pairing == Pairing::OurServer {
            plane.processes.push(plane.bed.upstream_agent(port, "upstream-agent")?);
        } else {
            plane.agent = Some(plane.bed.start_agent(plane.bed.agent_config(port, "our-agent")).0);
        }
        let echo = Endpoint::echo()?;
        eventually("a tunnel", SOON, || plane.open(echo.address()).ok())
            .with_context(|| format!("{pairing:?} {mode:?}"))?;
        plane.wait_until_empty()?;
        Ok(plane)
    }

    pub fn socket(&self) -> PathBuf {
        self.bed.socket()
    }

    /// Opens a tunnel to `address`.
    pub fn open(&self, address: SocketAddr) -> Result<Client, String> {
        open(&self.socket(), self.mode, &address.to_string())
    }

    /// Waits until no landfall end has a tunnel left.
    pub fn wait_until_empty(&self) -> Result<()> {
        let agents = || self.server.as_ref().map(ServerView::agents).unwrap_or_default();
        eventually("all tunnels to be gone", GONE, || {
            let left = self.agent.as_ref().map_or(0, AgentView::tunnels)
                + agents().iter().map(|agent| agent.tunnels + agent.pending).sum::<usize>();
            (left == 0).then_some(())
        })
    }
}

pub fn open(socket: &Path, mode: Mode, address: &str) -> Result<Client, String> {
    match mode {
        Mode::HttpConnect => connect(socket, address).map(Client::Connect),
        Mode::Grpc => client::GrpcClient::dial(socket, address).map(|client| Client::Grpc(Box::new(client))),
    }
}
