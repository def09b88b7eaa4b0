//! A server or an agent on the command line, for measurements: `tunnel server MODE SOCKET PORT CERTIFICATES`, `tunnel
//! agent PORT CERTIFICATES`. The `landfall` binary has the product's command line.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use landfall_tunnel::agent::Agent;
use landfall_tunnel::config::{
    AgentConfig, CertificateFiles, ClientTls, DEFAULT_UDS_PERMISSIONS, Frontend, Mode, ServerConfig,
    ServerTlsFiles,
};
use landfall_tunnel::server::Server;
use tokio_util::sync::CancellationToken;

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let runtime = match words.first() {
        Some(&"agent") => landfall_tunnel::agent_runtime()?,
        _ => landfall_tunnel::server_runtime()?,
    };
    runtime.block_on(run(&words))
}

async fn run(words: &[&str]) -> anyhow::Result<()> {
    let stop = CancellationToken::new();
    match *words {
        ["server", mode, socket, port, certificates] => {
            let files = Path::new(certificates);
            let mode: Mode = mode.parse()?;
            let frontend = Frontend::Unix {
                path: socket.into(),
                delete_existing: true,
                permissions: DEFAULT_UDS_PERMISSIONS,
            };
            let config = ServerConfig {
                mode,
                agent_bind_address: IpAddr::V4(Ipv4Addr::LOCALHOST),
                agent_port: port.parse()?,
                agent_tls: Some(ServerTlsFiles {
                    certificate: CertificateFiles {
                        certificate: files.join("server.crt"),
                        key: files.join("server.key"),
                    },
                    client_ca: Some(files.join("ca.crt")),
                }),
                ..ServerConfig::new(frontend, "server".to_owned())
            };
            Server::bind(config, None).await?.run(stop).await;
        }
        ["agent", port, certificates] => {
            let files = Path::new(certificates);
            let config = AgentConfig {
                proxy_server_port: port.parse()?,
                tls: Some(ClientTls {
                    ca: Some(files.join("ca.crt")),
                    certificate: Some(CertificateFiles {
                        certificate: files.join("agent.crt"),
                        key: files.join("agent.key"),
                    }),
                    protocols: vec![b"h2".to_vec()],
                }),
                ..AgentConfig::new("agent".to_owned())
            };
            Agent::bind(config).await?.run(stop).await;
        }
        _ => anyhow::bail!(
            "hint: `tunnel server MODE SOCKET PORT CERTIFICATES` or `tunnel agent PORT CERTIFICATES`"
        ),
    }
    Ok(())
}
