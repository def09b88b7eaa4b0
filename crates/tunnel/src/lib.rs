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

use std::io;

use serde::{Deserialize, Serialize};
use tokio::runtime::{Builder, Runtime};

pub use identifiers::{IdentifierError, Identifiers, Unknown};
pub use number::unique_id;
pub use tls::TlsError;

/// The threads a server runs on: half of the machine, whose other half the API server needs. Handing tunnels from thread
/// to thread costs more than it brings.
pub fn server_runtime() -> io::Result<Runtime> {
    keep_freed_memory();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    Builder::new_multi_thread().worker_threads((cores / 2).max(1)).enable_all().build()
}

/// The thread an agent runs on. All its tunnels meet in one stream for each server, so a second thread would only hand
/// bytes to the first.
pub fn agent_runtime() -> io::Result<Runtime> {
    keep_freed_memory();
    Builder::new_current_thread().enable_all().build()
}

/// Lets glibc keep some of what is freed. At first it gives back to the system whatever is free beyond 128 KiB, which is less
/// than one turn of a busy tunnel, so that pages are faulted in again for each. It learns from the size of what is freed.
fn keep_freed_memory() {
    const LESSON: usize = 4 * 1024 * 1024;
    drop(std::hint::black_box(Vec::<u8>::with_capacity(LESSON)));
}

/// What an admin port tells, whoever's it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "lowercase")]
pub enum Status {
    Server(server::ServerStatus),
    Agent(agent::AgentReport),
}
