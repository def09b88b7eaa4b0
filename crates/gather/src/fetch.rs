//! Streams the bundle of the bootstrap machine into a file, and says how much of it is whole.

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http_body_util::BodyExt as _;
use hyper::header::{ACCEPT, HeaderValue};
use hyper::{HeaderMap, Method};
use landfall_evidence::bundle::{self, Verified, VerifyError};

use crate::connection::said;
use crate::{Error, Found};

/// A collecting machine says something at least this often; one source alone may take a minute.
pub(crate) const SILENCE_LIMIT: Duration = Duration::from_secs(150);

/// The largest bundle that is taken: a peer must not fill the disk for ever.
const MAX_BUNDLE: u64 = 16 << 30;

/// What is wanted of the bundle.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// Only what is younger, as the gateway reads it: `2h`, `2026-01-02T03:04:05Z`.
    pub since: Option<String>,
    /// zstd instead of gzip.
    pub zstd: bool,
}

/// What came.
#[derive(Debug)]
pub struct Fetched {
    pub path: PathBuf,
    pub bytes: u64,
    /// Which files are whole. A cut stream is still a bundle, as far as it goes.
    pub verified: Verified,
    /// Why the stream ended before its time.
    pub cut: Option<io::Error>,
}

/// Fetches the bundle on the connection that was found. Under its final name there is never a partial bundle: that is
/// kept beside it, as `NAME.partial`.
pub async fn fetch(
    found: &mut Found,
    wanted: &Wanted,
    to: &Path,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Fetched, Error> {
    let mut headers = HeaderMap::new();
    let accept = if wanted.zstd { "application/zstd" } else { "application/gzip" };
    headers.insert(ACCEPT, HeaderValue::from_static(accept));
    let target = match &wanted.since {
        Some(since) => format!("/bootstrap?since={}", escaped(since)),
        None => "/bootstrap".to_owned(),
    };
    let response = found.connection.ask(Method::GET, &target, headers).await?;
    if response.status() != 200 {
        let (status, said) = said(response).await;
        return Err(Error::Refused { path: "/bootstrap", status, said });
    }
    let mut arrival = Arrival::open(to)?;
    let mut body = response.into_body();
    let cut = loop {
        let frame = match tokio::time::timeout(SILENCE_LIMIT, body.frame()).await {
            Err(_) => break Some(silent()),
            Ok(None) => break None,
            Ok(Some(Err(error))) => break Some(io::Error::other(error)),
            Ok(Some(Ok(frame))) => frame,
        };
        let Ok(data) = frame.into_data() else { continue };
        if let Some(cut) = arrival.take(&data)? {
            break Some(cut);
        }
        progress(data.len() as u64);
    };
    arrival.finish(cut)
}

/// A bundle on its way into a file.
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
        // Only for its owner: what is left after redaction is still nobody else's business.
        let file = options.write(true).create(true).truncate(true).mode(0o600).open(&partial);
        let file = file.map_err(|source| Error::Write { path: partial.clone(), source })?;
        Ok(Self { file, partial, to: to.to_owned(), bytes: 0 })
    }

    /// Keeps what came; a reason to stop when it is too much.
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
        // Nothing of it can be used: as good as cut before its first file.
        Err(VerifyError::Packing) => Ok(Verified { cut: true, ..Verified::default() }),
    }
}

fn partial_name(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".partial");
    name.into()
}

/// For a query's value.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~:".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out += &format!("%{byte:02X}");
        }
    }
    out
}
