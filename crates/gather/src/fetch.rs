//! Downloads the bundle of the bootstrap host to a file, and verifies which of its files are complete.

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Seek as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper::header::{ACCEPT, ETAG, HeaderValue, IF_RANGE, RANGE};
use hyper::{HeaderMap, Method, StatusCode};
use landfall_evidence::bundle::{self, Verified, VerifyError};
use landfall_model::chain;
use landfall_net::http::{Answer, HttpError};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::connection::said;
use crate::{Access, Endpoint, Error, Found, Patience, find};

/// Timeout for the next data. A collecting host sends more often; a single source may take a minute.
pub(crate) const SILENCE_LIMIT: Duration = Duration::from_secs(150);

/// Maximum size of a bundle: a peer must not fill the disk.
const MAX_BUNDLE: u64 = 16 << 30;

/// Maximum number of attempts to resume a truncated bundle.
const RETRIES: usize = 4;

/// Bytes that are escaped in the value of a query parameter.
const QUERY: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b':');

/// Access to the bootstrap host, to find it again after an interruption.
#[derive(Clone, Copy)]
#[expect(missing_debug_implementations, reason = "holds credentials")]
pub struct Route<'a> {
    pub endpoint: &'a Endpoint,
    pub access: &'a Access,
    pub patience: Patience,
}

/// Options of the requested bundle.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// Only newer lines, in the gateway's format: `2h`, `2026-01-02T03:04:05Z`.
    pub since: Option<String>,
    /// zstd instead of gzip.
    pub zstd: bool,
}

/// Result of a download.
#[derive(Debug)]
pub struct Fetched {
    pub path: PathBuf,
    pub bytes: u64,
    /// The complete files. A truncated stream contains a valid bundle up to its end.
    pub verified: Verified,
    /// Reason for the premature end of the stream.
    pub cut: Option<io::Error>,
}

/// Downloads the bundle, first on the given connection.
///
/// If the stream is truncated, this finds the host again and requests the rest, a few times. The final file name never
/// contains a partial bundle, which remains as `NAME.partial`.
pub async fn fetch(
    route: Route<'_>,
    mut found: Found,
    wanted: &Wanted,
    to: &Path,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Fetched, Error> {
    let mut arrival = Arrival::open(to)?;
    let mut bundle = None;
    let mut retries_left = RETRIES;
    loop {
        let Some(cut) = once(&mut found, wanted, &mut bundle, &mut arrival, progress).await? else {
            return arrival.finish(None);
        };
        // A truncated stream can be resumed only if the server named the bundle.
        if retries_left == 0 || bundle.is_none() {
            return arrival.finish(Some(cut));
        }
        retries_left -= 1;
        tracing::info!(%cut, bytes = arrival.bytes, "The stream was cut; asking for the rest.");
        found = match find(route.endpoint, route.access, route.patience).await {
            Ok(found) => found,
            Err(error) => {
                tracing::warn!(error = %chain(&error), "The bootstrap machine is not found again.");
                return arrival.finish(Some(cut));
            }
        };
    }
}

/// Requests the bundle or its rest once. Returns the reason for a premature end of the stream.
async fn once(
    found: &mut Found,
    wanted: &Wanted,
    bundle: &mut Option<HeaderValue>,
    arrival: &mut Arrival,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Option<io::Error>, Error> {
    let mut headers = HeaderMap::new();
    headers.insert(ACCEPT, wanted.kind());
    if let (Some(name), Ok(range)) = (&*bundle, HeaderValue::try_from(format!("bytes={}-", arrival.bytes))) {
        headers.insert(IF_RANGE, name.clone());
        headers.insert(RANGE, range);
    }
    let target = match &wanted.since {
        Some(since) => format!("/bootstrap?since={}", utf8_percent_encode(since, QUERY)),
        None => "/bootstrap".to_owned(),
    };
    let response = match found.connection.ask(Method::GET, &target, headers).await {
        Ok(response) => response,
        // The bytes received so far are kept.
        Err(error) if arrival.bytes > 0 => return Ok(Some(io::Error::other(error))),
        Err(error) => return Err(error),
    };
    match response.status() {
        StatusCode::PARTIAL_CONTENT => {}
        // A different bundle, from its beginning.
        StatusCode::OK => arrival.restart()?,
        _ => {
            let (status, said) = said(response).await;
            return Err(Error::Refused { path: "/bootstrap", status, said });
        }
    }
    *bundle = response.headers().get(ETAG).cloned();
    take_all(response, arrival, progress).await
}

/// Writes a body to the file as it arrives. Returns the reason for a premature end.
pub(crate) async fn take_all(
    mut answer: Answer,
    arrival: &mut Arrival,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Option<io::Error>, Error> {
    loop {
        let data = match answer.piece(SILENCE_LIMIT).await {
            Ok(None) => return Ok(None),
            Err(HttpError::Late { .. }) => return Ok(Some(silent())),
            Err(error) => return Ok(Some(io::Error::other(error))),
            Ok(Some(data)) => data,
        };
        if let Some(cut) = arrival.take(&data)? {
            return Ok(Some(cut));
        }
        progress(data.len() as u64);
    }
}

// === impl Wanted ===

impl Wanted {
    pub(crate) fn kind(&self) -> HeaderValue {
        HeaderValue::from_static(if self.zstd { "application/zstd" } else { "application/gzip" })
    }
}

/// A bundle that is being written to a file.
#[derive(Debug)]
pub(crate) struct Arrival {
    file: File,
    partial: PathBuf,
    to: PathBuf,
    bytes: u64,
}

// === impl Arrival ===

impl Arrival {
    pub(crate) fn open(to: &Path) -> Result<Self, Error> {
        let partial = partial_name(to);
        let mut options = OpenOptions::new();
        // Accessible to its owner only: redacted logs are still confidential.
        let file = options.write(true).create(true).truncate(true).mode(0o600).open(&partial);
        let file = file.map_err(|source| Error::Write { path: partial.clone(), source })?;
        Ok(Self { file, partial, to: to.to_owned(), bytes: 0 })
    }

    /// Discards the bytes received so far.
    fn restart(&mut self) -> Result<(), Error> {
        self.bytes = 0;
        let emptied = self.file.set_len(0).and_then(|()| self.file.rewind());
        emptied.map_err(|source| Error::Write { path: self.partial.clone(), source })
    }

    /// Appends bytes; returns a reason to stop when the bundle exceeds its limit.
    pub(crate) fn take(&mut self, data: &[u8]) -> Result<Option<io::Error>, Error> {
        self.bytes += data.len() as u64;
        if self.bytes > MAX_BUNDLE {
            return Ok(Some(io::Error::other("it is larger than any bundle")));
        }
        let written = self.file.write_all(data);
        written.map_err(|source| Error::Write { path: self.partial.clone(), source })?;
        Ok(None)
    }

    pub(crate) fn finish(self, cut: Option<io::Error>) -> Result<Fetched, Error> {
        let Self { file, partial, to, bytes } = self;
        let failed = |source| Error::Write { path: partial.clone(), source };
        file.sync_all().map_err(failed)?;
        drop(file);
        let verified = verify(&partial).map_err(failed)?;
        if cut.is_some() || verified.cut {
            return Ok(Fetched { path: partial, bytes, verified, cut });
        }
        std::fs::rename(&partial, &to).map_err(|source| Error::Write { path: to.clone(), source })?;
        Ok(Fetched { path: to, bytes, verified, cut: None })
    }
}

pub(crate) fn silent() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the machine fell silent")
}

fn verify(path: &Path) -> io::Result<Verified> {
    match bundle::verify(BufReader::new(File::open(path)?)) {
        Ok(verified) => Ok(verified),
        Err(VerifyError::Read { source }) => Err(source),
        // The bundle is unusable: the same as truncated before its first file.
        Err(VerifyError::Packing | VerifyError::TooLarge { .. }) => {
            Ok(Verified { cut: true, ..Verified::default() })
        }
    }
}

fn partial_name(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".partial");
    name.into()
}
