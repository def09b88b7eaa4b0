//! The part of NATS that JetStream needs: publish under an ID with an acknowledgment, or fetch messages of a stream and
//! settle them.
//!
//! ```text
//! Server ─► Connection ─┬─► publish: one message, one acknowledgement
//!                       └─► Consumer ─► take: messages ─► settle: taken, never, later
//! ```
//!
//! A connection handles one operation at a time. Every wait has a timeout, and every response a size limit. This module
//! does not retry.

mod connection;
mod consumer;
mod protocol;
mod server;

pub use connection::{Connection, NatsError};
pub use consumer::{Consumer, Message, Settlement};
pub use protocol::{MAX_BYTES, MAX_LINE, Said, acknowledged, said, status};
pub use server::{InvalidServer, Server, is_subject};
