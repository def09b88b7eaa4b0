//! A tunnel server and agent for Konnectivity's protocol: drop-in replacements for `proxy-server` and `proxy-agent`.
//!
//! From the wire upwards: [`landfall_http2`] and [`grpc`] frame bytes, and [`packet`] encodes and decodes Konnectivity's
//! packets. `mux` separates the tunnels of one agent, and [`server`] and [`agent`] connect them to sockets.

mod clock;
mod health;
mod identifiers;
mod metrics;
mod mux;
mod number;
mod relay;
mod socket;
mod transport;

#[cfg(test)]
mod simulation;

pub mod agent;
pub mod config;
pub mod grpc;
pub mod packet;
pub mod server;

use std::io;

use serde::{Deserialize, Serialize};
use tokio::runtime::{Builder, Runtime};

pub use identifiers::{IdentifierError, Identifiers, Unknown};
pub use landfall_net::TlsError;
pub use number::unique_id;

/// Returns the runtime of a server. It uses half of the cores, because the API server needs the other half. Moving
/// tunnels between more threads costs more than it gains.
pub fn server_runtime() -> io::Result<Runtime> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    Builder::new_multi_thread().worker_threads((cores / 2).max(1)).enable_all().build()
}

/// Returns the runtime of an agent, with a single thread. All tunnels share one stream per server, so a second thread
/// would only pass bytes to the first.
pub fn agent_runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

/// The status on the admin port of a server or an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "lowercase")]
pub enum Status {
    Server(server::ServerStatus),
    Agent(agent::AgentReport),
}
