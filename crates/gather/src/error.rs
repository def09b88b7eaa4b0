use std::io;
use std::path::PathBuf;

use landfall_net::http::HttpError;

/// Reason for a missing or incomplete response of the endpoint.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("invalid API endpoint `{url}`: {why}")]
    Url { url: String, why: &'static str },
    #[error("use the proxy `{proxy}`: {why}")]
    Proxy { proxy: String, why: String },
    #[error(transparent)]
    Http(#[from] HttpError),
    #[error("use the TLS credentials: {what}")]
    Credentials { what: String },
    #[error(
        "find the bootstrap machine behind {endpoint}: {tries} connections in {seconds} s reached {reached}"
    )]
    NotFound { endpoint: String, tries: usize, seconds: u64, reached: String },
    #[error("ask the bootstrap machine for {path}: {status}{said}")]
    Refused { path: &'static str, status: u16, said: String },
    #[error("ask the agent on {node} for a bundle: {status}{said}")]
    Agent { node: String, status: u16, said: String },
    #[error("ask the API server for {path}: {status}{said}")]
    List { path: &'static str, status: u16, said: String },
    #[error("write `{path}`")]
    Write { path: PathBuf, source: io::Error },
    #[error("reach {target} through {endpoint}: {status}{said}")]
    Tunnel { target: String, endpoint: String, status: u16, said: String },
    #[error("carry bytes between here and {target}")]
    Carry { target: String, source: io::Error },
    #[error("start ssh for {node}")]
    Ssh { node: String, source: io::Error },
}

// === impl Error ===

impl Error {
    /// Returns whether the server denied access.
    pub fn is_denied(&self) -> bool {
        matches!(
            self,
            Self::Refused { status: 401 | 403, .. }
                | Self::Tunnel { status: 401 | 403, .. }
                | Self::Agent { status: 401 | 403, .. }
        )
    }

    /// Returns whether no server responded, so that a retry may succeed.
    pub fn is_unavailable(&self) -> bool {
        matches!(
            self,
            Self::NotFound { .. }
                | Self::Http(HttpError::Unreachable { .. } | HttpError::Late { .. } | HttpError::Tls { .. })
                | Self::Refused { status: 503, .. }
                | Self::Agent { status: 429 | 503, .. }
        )
    }
}
