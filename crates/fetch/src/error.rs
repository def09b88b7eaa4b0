use std::io;
use std::path::PathBuf;

/// The reason why a download or request failed.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    #[error("cannot read the certificate authorities in `{path}`")]
    Authority { path: PathBuf, source: io::Error },
    #[error("`{path}` contains no usable CA certificate")]
    NoAuthority { path: PathBuf },
    #[error("cannot make an HTTP client")]
    Tls { source: landfall_net::TlsError },
    #[error("cannot make an HTTP client")]
    Client { source: reqwest::Error },
    #[error("there is no place to fetch it from")]
    NoPlace,
    #[error("cannot get `{url}`")]
    Transport { url: String, source: reqwest::Error },
    #[error("`{url}` answered {status}")]
    Status { url: String, status: u16 },
    #[error("`{url}` broke off after {got} of {expected} bytes")]
    Short { url: String, got: u64, expected: u64 },
    #[error("`{url}` sent nothing for {seconds} s")]
    Idle { url: String, seconds: u64 },
    #[error("`{url}` did not complete within {seconds} s")]
    Late { url: String, seconds: u64 },
    #[error("`{url}` is longer than the {limit} bytes allowed")]
    TooLong { url: String, limit: u64 },
    #[error("`{url}` is not what was expected: its {algorithm} is {found}, not {expected}")]
    WrongHash {
        url: String,
        algorithm: &'static str,
        found: String,
        expected: String,
        /// Its beginning came from an earlier attempt, so a download from scratch may succeed.
        resumed: bool,
    },
    #[error("`{path}` needs {needed} bytes and there is room for {free}")]
    NoSpace { path: PathBuf, needed: u64, free: u64 },
    #[error("cannot read `{path}`")]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot write `{path}`")]
    Write { path: PathBuf, source: io::Error },
    #[error("cannot put `{path}` in its place")]
    Publish { path: PathBuf, source: landfall_durable::Error },
    #[error("none of {count} places gave it: {reasons}")]
    Everywhere {
        count: usize,
        reasons: String,
        lasting: bool,
        /// At least one URL delivered content with the wrong hash.
        wrong: bool,
    },
}

// === impl FetchError ===

impl FetchError {
    /// Returns whether a retry of the same URL is useless.
    pub fn is_lasting(&self) -> bool {
        match self {
            // A busy server answers 408 or 429; every other 4xx status is final.
            Self::Status { status, .. } => (400..500).contains(status) && !matches!(status, 408 | 429),
            Self::Transport { source, .. } => source.is_redirect() || source.is_builder(),
            Self::Everywhere { lasting, .. } => *lasting,
            Self::WrongHash { resumed, .. } => !resumed,
            Self::Short { .. } | Self::Idle { .. } | Self::Late { .. } => false,
            _ => true,
        }
    }

    /// Returns whether no connection was established, so the server has received nothing.
    pub fn is_unreached(&self) -> bool {
        matches!(self, Self::Transport { source, .. } if source.is_connect())
    }

    /// Returns whether any other URL would fail as well, because the fault is local.
    pub(crate) fn is_ours(&self) -> bool {
        matches!(self, Self::NoSpace { .. } | Self::Write { .. } | Self::Publish { .. })
    }

    /// Returns whether the partial file is useless.
    pub(crate) fn spoils_the_part(&self) -> bool {
        matches!(
            self,
            Self::WrongHash { .. } | Self::TooLong { .. } | Self::NoSpace { .. } | Self::Write { .. }
        )
    }
}
