//! Many agents and one server in one process: `swarm COUNT`.
//!
//! The server stops and restarts, and all agents reconnect. The output is plain numbers: MiB of memory per thousand
//! agents, seconds until all were connected, seconds until all were reconnected, and processor milliseconds per
//! reconnect (both ends).
#![expect(clippy::print_stdout, clippy::cast_precision_loss, reason = "a tool for measurements")]

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use landfall_pki::{Authority, Leaf, Purpose};
use landfall_tunnel::agent::Agent;
use landfall_tunnel::config::{
    AgentConfig, CertificateFiles, ClientTls, DEFAULT_UDS_PERMISSIONS, Frontend, Mode, ServerConfig,
    ServerTlsFiles,
};
use landfall_tunnel::server::{Server, ServerView};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Timeout for all agents to connect.
const LIMIT: Duration = Duration::from_secs(300);
const LOOK: Duration = Duration::from_millis(5);

#[tokio::main]
async fn main() -> Result<()> {
    let count: usize = std::env::args().nth(1).context("hint: `swarm COUNT`")?.parse()?;
    let folder = tempfile::tempdir()?;
    issue(folder.path())?;
    let (mut server, view, port) = serve(folder.path(), 0).await?;
    let before = resident_mib()?;
    let started = Instant::now();
    let (stop, mut agents) = (CancellationToken::new(), Vec::new());
    for number in 0..count {
        let config = AgentConfig {
            proxy_server_port: port,
            tls: Some(ClientTls {
                ca: Some(folder.path().join("ca.crt")),
                certificate: Some(CertificateFiles {
                    certificate: folder.path().join("agent.crt"),
                    key: folder.path().join("agent.key"),
                }),
                protocols: vec![b"h2".to_vec()],
            }),
            ..AgentConfig::new(format!("agent-{number}"))
        };
        let agent = Agent::bind(config).await?;
        agents.push(tokio::spawn(agent.run(stop.clone())));
    }
    wait(&view, count).await?;
    let connected = started.elapsed();
    let memory = resident_mib()? - before;

    server.stop().await?;
    let (started, processor) = (Instant::now(), processor_seconds()?);
    let (again, view, _) = serve(folder.path(), port).await?;
    wait(&view, count).await?;
    let (back, processor) = (started.elapsed(), processor_seconds()? - processor);
    println!(
        "{:.1} {:.2} {:.2} {:.3}",
        memory * 1000.0 / count as f64,
        connected.as_secs_f64(),
        back.as_secs_f64(),
        processor * 1000.0 / count as f64
    );
    stop.cancel();
    server = again;
    server.stop().await
}

struct Running {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Running {
    async fn stop(&mut self) -> Result<()> {
        self.stop.cancel();
        (&mut self.task).await.context("stop the server")
    }
}

async fn serve(folder: &Path, port: u16) -> Result<(Running, ServerView, u16)> {
    let path = folder.join("frontend.sock");
    let frontend = Frontend::Unix { path, delete_existing: true, permissions: DEFAULT_UDS_PERMISSIONS };
    let config = ServerConfig {
        mode: Mode::HttpConnect,
        agent_bind_address: IpAddr::V4(Ipv4Addr::LOCALHOST),
        agent_port: port,
        agent_tls: Some(ServerTlsFiles {
            certificate: CertificateFiles {
                certificate: folder.join("server.crt"),
                key: folder.join("server.key"),
            },
            client_ca: Some(folder.join("ca.crt")),
        }),
        ..ServerConfig::new(frontend, "server".to_owned())
    };
    let server = Server::bind(config, None).await?;
    let (view, port, stop) = (server.view(), server.agent_address()?.port(), CancellationToken::new());
    let task = tokio::spawn(server.run(stop.clone()));
    Ok((Running { stop, task }, view, port))
}

async fn wait(view: &ServerView, count: usize) -> Result<()> {
    let all = async {
        while view.agents().len() < count {
            tokio::time::sleep(LOOK).await;
        }
    };
    let waited = tokio::time::timeout(LIMIT, all).await;
    ensure!(waited.is_ok(), "{} of {count} agents came", view.agents().len());
    Ok(())
}

fn issue(folder: &Path) -> Result<()> {
    let authority = Authority::new("swarm", 2)?;
    std::fs::write(folder.join("ca.crt"), authority.certificate())?;
    for (name, leaf) in [
        ("server", Leaf::new("server", Purpose::Serve).names(["127.0.0.1"])),
        ("agent", Leaf::new("agent", Purpose::Call)),
    ] {
        let issued = authority.issue(&leaf)?;
        std::fs::write(folder.join(format!("{name}.crt")), &issued.certificate)?;
        std::fs::write(folder.join(format!("{name}.key")), issued.key.expose())?;
    }
    Ok(())
}

fn resident_mib() -> Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("the memory in use")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<f64>()? / 1024.0)
}

fn processor_seconds() -> Result<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let mut ticks = 0.0;
    for at in [11, 12] {
        ticks += fields.get(at).context("the times")?.parse::<f64>()?;
    }
    Ok(ticks / 100.0)
}
