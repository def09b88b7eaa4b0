//! A tunnel server and agent that speak Konnectivity's protocol: drop-in for `proxy-server` and `proxy-agent`.
//!
//! From the wire upwards: [`http2`] and [`grpc`] frame bytes, [`packet`] reads and writes Konnectivity's packets, `mux`
//! keeps the tunnels of one agent apart, [`server`] and [`agent`] join them to sockets.

mod clock;
mod health;
mod identifiers;
mod metrics;
mod mux;
mod number;
mod relay;
mod socket;
mod tls;
mod transport;

#[cfg(test)]
mod simulation;

pub mod agent;
pub mod config;
pub mod grpc;
pub mod http2;
pub mod packet;
pub mod server;

use serde::{Deserialize, Serialize};

pub use identifiers::{IdentifierError, Identifiers, Unknown};
pub use number::unique_id;
pub use tls::TlsError;

/// What an admin port tells, whoever's it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "lowercase")]
pub enum Status {
    Server(server::ServerStatus),
    Agent(agent::AgentReport),
}
