//! Just enough D-Bus to ask systemd and its neighbours: calls with string arguments, answers of any type, signals, on a
//! blocking socket with a deadline. zbus has no blocking interface, and an asynchronous runtime for six calls would be the larger
//! part.

mod connection;
mod message;

use std::io;

pub use connection::{Connection, Peer, Signal};
pub use message::{Value, parse_reply, parse_values};

#[derive(Debug, thiserror::Error)]
pub enum DbusError {
    #[error("cannot talk to the bus")]
    Io {
        #[source]
        source: io::Error,
    },
    #[error("the bus refused us: {answer}")]
    Refused { answer: String },
    #[error("the bus sent a malformed message: {what}")]
    Malformed { what: &'static str },
    #[error("`{method}` failed: {error}")]
    Failed {
        method: String,
        /// What kind of error: `org.freedesktop.DBus.Error.ServiceUnknown`.
        name: String,
        error: String,
    },
    #[error("no answer in time")]
    TimedOut,
}
