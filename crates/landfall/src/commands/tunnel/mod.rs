//! `landfall tunnel`: converts upstream's flags to the configuration of the engine.

mod agent;
mod klog;
mod pflag;
mod server;
mod status;

pub(crate) use pflag::{as_upstream_writes, duration};

use std::net::{IpAddr, Ipv6Addr, ToSocketAddrs as _};
use std::path::{Path, PathBuf};

use anyhow::anyhow;
use clap::{Args, Subcommand};
use landfall_cluster::Cluster;
use landfall_net::Notify;
use tokio_util::sync::CancellationToken;

use crate::exit::{Exit, Failure};
use crate::runtime::Signals;

/// Carry the API server's traffic into the cluster, compatible with Konnectivity
///
/// `server` and `agent` take the flags of `proxy-server` and `proxy-agent`, and are what the binary does when it is called
/// by one of these names.
#[derive(Args)]
pub(crate) struct Tunnel {
    #[command(subcommand)]
    role: Role,
}

#[derive(Subcommand)]
enum Role {
    Server(Box<server::Server>),
    Agent(Box<agent::Agent>),
    Status(status::Status),
}

// === impl Tunnel ===

impl Tunnel {
    /// Returns the minimum verbosity, in `-v`s: a service that runs for months logs changes.
    pub(crate) fn verbosity(&self) -> u8 {
        match &self.role {
            Role::Server(server) => server.verbosity(),
            Role::Agent(agent) => agent.verbosity(),
            Role::Status(_) => 0,
        }
    }

    pub(crate) fn run(self) -> Result<Exit, Failure> {
        match self.role {
            Role::Server(server) => server.run(),
            Role::Agent(agent) => agent.run(),
            Role::Status(status) => status.run(),
        }
    }
}

/// Runs `role` until it has ended. The first signal stops it gracefully, the second ends it immediately.
pub(super) async fn until_told<R: Future<Output = ()>>(
    role: impl FnOnce(CancellationToken) -> R,
) -> anyhow::Result<()> {
    let mut signals = Signals::new()?;
    let manager = Notify::from_environment();
    let tell = |state| {
        if let Some(Err(error)) = manager.as_ref().map(|manager| manager.send(state)) {
            tracing::warn!(%error, state, "service manager not notified");
        }
    };
    let stop = CancellationToken::new();
    let mut running = std::pin::pin!(role(stop.clone()));
    tell("READY=1");
    tokio::select! {
        () = &mut running => return Ok(()),
        () = signals.next() => {}
    }
    tracing::info!("asked to stop: what is open may end by itself; a second signal does not wait");
    tell("STOPPING=1");
    stop.cancel();
    tokio::select! {
        () = running => {}
        () = signals.next() => tracing::warn!("asked a second time: what is open is cut off"),
    }
    Ok(())
}

/// Parses a listen address in Go's notation: empty means all addresses.
fn listening(flag: &str, text: &str) -> Result<IpAddr, Failure> {
    if text.is_empty() {
        return Ok(IpAddr::V6(Ipv6Addr::UNSPECIFIED));
    }
    let bare = text.trim_start_matches('[').trim_end_matches(']');
    if let Ok(address) = bare.parse() {
        return Ok(address);
    }
    let resolved = (text, 0).to_socket_addrs().ok().and_then(|mut found| found.next());
    resolved.map(|address| address.ip()).ok_or_else(|| {
        Failure::usage(
            anyhow!("invalid address `--{flag}={text}`: must be an IP address of this machine"),
            "give an IP address",
        )
    })
}

/// Returns the cluster of a kubeconfig; without one, the cluster that this process runs in.
async fn cluster(kubeconfig: Option<&Path>) -> Result<Cluster, Failure> {
    Cluster::connect(kubeconfig).await.map_err(|error| {
        Failure::new(error, "name a file with `--kubeconfig`, or run in a pod with an account")
    })
}

/// Returns a file name; an empty one counts as missing, because manifests often contain empty values.
fn file(name: &str) -> Option<PathBuf> {
    (!name.is_empty()).then(|| PathBuf::from(name))
}

/// Returns a certificate and its key, which must be given together.
fn pair(flags: &str, certificate: &str, key: &str) -> Result<Option<(PathBuf, PathBuf)>, Failure> {
    match (file(certificate), file(key)) {
        (Some(certificate), Some(key)) => Ok(Some((certificate, key))),
        (None, None) => Ok(None),
        _ => Err(Failure::usage(anyhow!("only one of {flags} is given"), "give both, or neither")),
    }
}
