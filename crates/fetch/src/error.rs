use std::io;
use std::path::PathBuf;

/// Why something could not be fetched.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    #[error("cannot read the certificate authorities in `{path}`")]
    Authority { path: PathBuf, source: io::Error },
    #[error("`{path}` holds no usable certificate authority")]
    NoAuthority { path: PathBuf },
    #[error("cannot make an HTTP client")]
    Tls { source: rustls::Error },
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
    #[error("`{url}` did not come to an end within {seconds} s")]
    Late { url: String, seconds: u64 },
    #[error("`{url}` is longer than the {limit} bytes allowed")]
    TooLong { url: String, limit: u64 },
    #[error("`{url}` is not what was expected: its {algorithm} is {found}, not {expected}")]
    WrongHash {
        url: String,
        algorithm: &'static str,
        found: String,
        expected: String,
        /// Its beginning was of an earlier try: from the start it may be right.
        resumed: bool,
    },
    #[error("`{path}` needs {needed} bytes and there is room for {free}")]
    NoSpace { path: PathBuf, needed: u64, free: u64 },
    #[error("cannot read `{path}`")]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot write `{path}`")]
    Write { path: PathBuf, source: io::Error },
    #[error("cannot put `{path}` in its place")]
    Publish { path: PathBuf, source: landfall_steps::durable::Error },
    #[error("none of {count} places gave it: {reasons}")]
    Everywhere {
        count: usize,
        reasons: String,
        lasting: bool,
        /// One of them gave something else than was asked for.
        wrong: bool,
    },
}

// === impl FetchError ===

impl FetchError {
    /// Asking the same place again is of no use.
    pub fn is_lasting(&self) -> bool {
        match self {
            // A server that is too busy says so with 408 and 429; every other 4xx is its last word.
            Self::Status { status, .. } => (400..500).contains(status) && !matches!(status, 408 | 429),
            Self::Transport { source, .. } => source.is_redirect() || source.is_builder(),
            Self::Everywhere { lasting, .. } => *lasting,
            Self::WrongHash { resumed, .. } => !resumed,
            Self::Short { .. } | Self::Idle { .. } | Self::Late { .. } => false,
            _ => true,
        }
    }

    /// No connection came about: the other side has not been shown anything.
    pub fn is_unreached(&self) -> bool {
        matches!(self, Self::Transport { source, .. } if source.is_connect())
    }

    /// Another place would meet the same: the fault is here.
    pub(crate) fn is_ours(&self) -> bool {
        matches!(self, Self::NoSpace { .. } | Self::Write { .. } | Self::Publish { .. })
    }

    /// What was begun is of no further use.
    pub(crate) fn spoils_the_part(&self) -> bool {
        matches!(
            self,
            Self::WrongHash { .. } | Self::TooLong { .. } | Self::NoSpace { .. } | Self::Write { .. }
        )
    }
}
