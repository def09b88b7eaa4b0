//! A minimal client of the container runtime interface (CRI v1) of containerd or CRI-O.
//!
//! It queries containers and failures by unary gRPC calls over HTTP/2, on a blocking Unix socket with a deadline and
//! one connection per call. For six calls, an asynchronous runtime and generated code would be larger than this module.

mod call;
mod connection;
mod header;
mod protobuf;
mod runtime;

use std::io;

pub use call::{Call, Progress};
pub use connection::Connection;
pub use runtime::{Condition, Container, ContainerState, Image, Pod, PodState, Status, Version};

#[derive(Debug, thiserror::Error)]
pub enum CriError {
    #[error("cannot talk to the container runtime")]
    Io {
        #[source]
        source: io::Error,
    },
    #[error("the container runtime violated its protocol")]
    Http2(#[from] landfall_http2::Http2Error),
    #[error("the container runtime sent something malformed: {what}")]
    Malformed { what: &'static str },
    #[error("`{method}` failed: {message} (gRPC status {status})")]
    Failed { method: &'static str, status: u32, message: String },
    #[error("the container runtime did not answer in time")]
    TimedOut,
}
