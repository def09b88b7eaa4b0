//! Many tunnels on one agent's stream, seen from either end.
//!
//! A [`Tunnel`] is the end that a client's or an endpoint's task holds; [`Mux`] is the other end, held by the task that
//! owns the stream. Between them stand bounded queues, one pair for each tunnel, so that a tunnel whose reader stalls
//! fills its own queue and nothing else. Nothing here does I/O.
//!
//! How a tunnel is slowed down depends on the peer:
//! - a peer of ours grants credit per tunnel ([`crate::packet::Packet::Credit`]), so the sender of that tunnel pauses;
//! - an upstream peer knows no credit. Its tunnels may queue up to [`queue::MARK`]; beyond that the whole stream is held
//!   back for a moment, and a tunnel that does not recover in that time is closed, with a reason.

mod link;
mod queue;
mod tunnel;

#[cfg(test)]
mod tests;

pub(crate) use link::{Mux, Side};
pub(crate) use queue::{Command, Queue};
pub(crate) use tunnel::{DialFailure, State, Tunnel};

/// The header by which peers of ours find each other; its value is the credit each tunnel has at its start.
pub(crate) const FLOW_HEADER: &str = "landfall-tunnel-credit";
/// What a tunnel may send before the first credit arrives.
pub(crate) const FIRST_CREDIT: u64 = 256 * 1024;
