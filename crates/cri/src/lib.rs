//! Just enough of the container runtime interface (CRI v1) to ask containerd or CRI-O what runs and what failed: unary
//! gRPC calls over HTTP/2 on a blocking Unix socket with a deadline. One connection per call; an asynchronous runtime and
//! generated code for six questions would be the larger part.

mod connection;
mod header;
mod protobuf;
mod reply;
mod runtime;

use std::io;

pub use connection::Connection;
pub use reply::{Progress, Reply};
pub use runtime::{Condition, Container, ContainerState, Image, Pod, PodState, Status, Version};

#[derive(Debug, thiserror::Error)]
pub enum CriError {
    #[error("cannot talk to the container runtime")]
    Io {
        #[source]
        source: io::Error,
    },
    #[error("the container runtime sent malformed headers")]
    Headers {
        #[source]
        source: landfall_hpack::HpackError,
    },
    #[error("the container runtime sent something malformed: {what}")]
    Malformed { what: &'static str },
    #[error("`{method}` failed: {message} (gRPC status {status})")]
    Failed { method: &'static str, status: u32, message: String },
    #[error("the container runtime did not answer in time")]
    TimedOut,
}
