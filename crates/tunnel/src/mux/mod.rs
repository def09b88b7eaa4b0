//! Many tunnels on one agent's stream, from either end.
//!
//! A [`Tunnel`] is the end in the task of a client or an endpoint. [`Mux`] is the other end, in the task that owns the
//! stream. Bounded queues connect them, one pair for each tunnel, so that a stalled reader fills only the queue of its
//! own tunnel. This module does no I/O.
//!
//! How a tunnel is slowed down depends on the peer:
//! - A landfall peer grants credit per tunnel ([`crate::packet::Packet::Credit`]), so that only the sender of that
//!   tunnel pauses.
//! - An upstream peer does not support credit. Its tunnels may queue up to [`queue::MARK`]. Beyond that the whole
//!   stream is paused for a moment, and a tunnel that does not recover in that time is closed with a reason.

mod link;
mod queue;
mod tunnel;

#[cfg(test)]
mod tests;

pub(crate) use link::{Mux, Side};
pub(crate) use queue::{Command, Queue};
pub(crate) use tunnel::{DialFailure, State, Tunnel};

/// The header by which landfall peers recognize each other; its value is the initial credit of each tunnel.
pub(crate) const FLOW_HEADER: &str = "landfall-tunnel-credit";
/// Bytes that a tunnel may send before the first credit arrives.
pub(crate) const FIRST_CREDIT: u64 = 256 * 1024;
