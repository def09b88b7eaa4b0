//! A minimal D-Bus client for systemd and related services. It supports calls with string arguments, responses of any
//! type, and signals, on a blocking socket with a deadline. zbus has no blocking interface, and for six calls an
//! asynchronous runtime would be larger than this module.

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
        /// The error name, such as `org.freedesktop.DBus.Error.ServiceUnknown`.
        name: String,
        error: String,
    },
    #[error("no answer in time")]
    TimedOut,
}
