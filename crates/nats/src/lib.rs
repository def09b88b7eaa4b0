//! Just enough NATS for JetStream: publish under an id and be told that it is stored, or take what a stream keeps and say what
//! became of it.
//!
//! ```text
//! Server ─► Connection ─┬─► publish: one message, one acknowledgement
//!                       └─► Consumer ─► take: messages ─► settle: taken, never, later
//! ```
//!
//! One connection does one thing at a time. Every wait has a deadline, every answer a bound; nothing is tried again here.

mod connection;
mod consumer;
mod protocol;
mod server;

pub use connection::{Connection, NatsError};
pub use consumer::{Consumer, Message, Settlement};
pub use protocol::{MAX_BYTES, MAX_LINE, Said, acknowledged, said, status};
pub use server::{InvalidServer, Server, is_subject};
