//! Bundles for many clients from one collection. The gateway writes the bundle to an unnamed file. Every client reads
//! it from the beginning at its own speed, and resumes after a lost connection.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::StatusCode;
use jiff::Timestamp;
use landfall_model::chain;
use landfall_net::http::Answer;
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore, mpsc, watch};

use crate::body::{Body, BoxError};
use crate::collector::{AskError, BUNDLE_ID, Collector};

/// Maximum size of a bundle. No usual host has more logs, and a bundle must not fill the disk.
const MAX_BUNDLE: u64 = 4 * 1024 * 1024 * 1024;
/// Size of one read for one client.
const PIECE: usize = 128 * 1024;
const PIECES: usize = 2;
/// Maximum number of clients that read bundles concurrently.
const MAX_READERS: usize = 16;
/// Time for which a finished bundle is kept for interrupted clients.
const KEPT_FOR: Duration = Duration::from_secs(600);
/// Timeout for a collection that sends nothing. Collectors bound each item well below this.
const SILENCE: Duration = Duration::from_secs(300);
/// Candidate directories for a bundle; the one with the most free space is used.
const PLACES: [&str; 4] = ["/var/lib/landfall", "/var/tmp", "/tmp", "/run"];

/// The compression format of a bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Packing {
    Gzip,
    Zstd,
}

/// The part of a bundle that a client requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Resume {
    pub(crate) bundle: String,
    pub(crate) offset: u64,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum GatherError {
    #[error("start collecting")]
    Ask(#[source] AskError),
    #[error("make a place for the bundle")]
    Place(#[source] io::Error),
    #[error("too many clients read bundles")]
    Busy,
}

/// A bundle to send to a client.
pub(crate) struct Bundle {
    pub(crate) id: String,
    pub(crate) packing: Packing,
    /// Offset and total length, when this is the rest of a bundle.
    pub(crate) rest: Option<(u64, u64)>,
    pub(crate) body: Body,
}

#[derive(Debug)]
pub(crate) struct Gathers {
    collector: Collector,
    current: Mutex<Option<Arc<Spool>>>,
    readers: Arc<Semaphore>,
}

/// A bundle in its file, in progress or finished.
#[derive(Debug)]
struct Spool {
    id: String,
    packing: Packing,
    /// Lines written before this time are not in the bundle.
    since: Option<Timestamp>,
    file: File,
    progress: watch::Receiver<Progress>,
    started: Instant,
}

#[derive(Clone, Copy, Debug)]
struct Progress {
    length: u64,
    end: End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    NotYet,
    Whole,
    Cut,
}

// === impl Gathers ===

impl Gathers {
    pub(crate) fn new(collector: Collector) -> Self {
        Self { collector, current: Mutex::default(), readers: Arc::new(Semaphore::new(MAX_READERS)) }
    }

    pub(crate) fn collector(&self) -> &Collector {
        &self.collector
    }

    /// Returns the collection in progress, the requested rest of the kept bundle, or a new collection. The flag is true
    /// for a new collection.
    pub(crate) async fn bundle(
        &self,
        packing: Packing,
        since: Option<Timestamp>,
        resume: Option<&Resume>,
    ) -> Result<(Bundle, bool), GatherError> {
        let turn = Arc::clone(&self.readers).try_acquire_owned().map_err(|_| GatherError::Busy)?;
        if let Some(bundle) = self.rest(resume, &turn).await {
            return Ok((bundle.into_body(turn), false));
        }
        let mut current = self.current.lock().await;
        while let Some(spool) = current.as_ref().filter(|spool| spool.is_open()) {
            // Clients of zstd also read gzip, but not the reverse. A bundle with an earlier `since` contains the
            // requested lines, too.
            let enough = spool.since.is_none_or(|from| since.is_some_and(|since| since >= from));
            if enough && (spool.packing == packing || spool.packing == Packing::Gzip) {
                let spool = Arc::clone(spool);
                return Ok((Reading { spool, rest: None }.into_body(turn), false));
            }
            // One collection at a time: wait for the current one.
            let mut progress = spool.progress.clone();
            let _ = progress.wait_for(|progress| progress.end != End::NotYet).await;
        }
        // Frees the disk space of the kept bundle before writing the next one.
        *current = None;
        let asked = self.collector.bundle(packing == Packing::Zstd, since).await;
        let answer = asked.map_err(GatherError::Ask)?;
        let spool = Arc::new(Spool::fill(answer, packing, since).map_err(GatherError::Place)?);
        *current = Some(Arc::clone(&spool));
        Ok((Reading { spool, rest: None }.into_body(turn), true))
    }

    /// Returns the rest of a bundle that is still kept, once it is complete.
    async fn rest(&self, resume: Option<&Resume>, _: &OwnedSemaphorePermit) -> Option<Reading> {
        let resume = resume?;
        let spool = self.current.lock().await.clone()?;
        if spool.id != resume.bundle || (!spool.is_open() && spool.started.elapsed() > KEPT_FOR) {
            return None;
        }
        let mut progress = spool.progress.clone();
        let done = *progress.wait_for(|progress| progress.end != End::NotYet).await.ok()?;
        let whole = done.end == End::Whole && resume.offset <= done.length;
        whole.then(|| Reading { spool: Arc::clone(&spool), rest: Some((resume.offset, done.length)) })
    }
}

// === impl Spool ===

impl Spool {
    /// Starts writing a response of the collector to a file.
    fn fill(answer: Answer, packing: Packing, since: Option<Timestamp>) -> io::Result<Self> {
        let id =
            answer.headers().get(BUNDLE_ID).and_then(|id| id.to_str().ok()).unwrap_or("unknown").to_owned();
        let file = place()?;
        let writer = file.try_clone()?;
        let (sender, progress) = watch::channel(Progress { length: 0, end: End::NotYet });
        tokio::spawn(write(answer, writer, sender));
        Ok(Self { id, packing, since, file, progress, started: Instant::now() })
    }

    fn is_open(&self) -> bool {
        self.progress.borrow().end == End::NotYet
    }
}

/// Creates an unnamed file in the directory with the most free space.
fn place() -> io::Result<File> {
    let room = |path: &&str| rustix::fs::statvfs(*path).map_or(0, |space| space.f_bavail * space.f_frsize);
    let mut places = PLACES;
    places.sort_by_key(|path| std::cmp::Reverse(room(path)));
    for place in places {
        if let Ok(file) = tempfile::tempfile_in(Path::new(place)) {
            return Ok(file);
        }
    }
    tempfile::tempfile()
}

/// Writes the complete body to the file, even without readers: interrupted clients may resume.
async fn write(mut answer: Answer, file: File, progress: watch::Sender<Progress>) {
    let file = Arc::new(file);
    let mut length = 0;
    let end = loop {
        let piece = match answer.piece(SILENCE).await {
            Ok(Some(piece)) => piece,
            Ok(None) => break End::Whole,
            Err(error) => {
                tracing::warn!(error = %chain(&error), "the collector broke off");
                break End::Cut;
            }
        };
        let (file, count) = (Arc::clone(&file), piece.len() as u64);
        if length + count > MAX_BUNDLE {
            break End::Cut;
        }
        let written = tokio::task::spawn_blocking(move || file.write_all_at(&piece, length)).await;
        if let Ok(Err(error)) = &written {
            tracing::warn!(%error, "the bundle cannot be kept");
        }
        if !matches!(written, Ok(Ok(()))) {
            break End::Cut;
        }
        length += count;
        progress.send_replace(Progress { length, end: End::NotYet });
    };
    progress.send_replace(Progress { length, end });
}

/// A bundle and the requested part of it.
struct Reading {
    spool: Arc<Spool>,
    rest: Option<(u64, u64)>,
}

// === impl Reading ===

impl Reading {
    fn into_body(self, turn: OwnedSemaphorePermit) -> Bundle {
        let (sender, pieces) = mpsc::channel(PIECES);
        let offset = self.rest.map_or(0, |(offset, _)| offset);
        let spool = Arc::clone(&self.spool);
        tokio::spawn(async move {
            let _turn = turn;
            if let Err(error) = read(&spool, offset, &sender).await {
                // The client sees a truncated stream; the send fails if it has disconnected.
                let _ = sender.send(Err(error)).await;
            }
        });
        Bundle {
            id: self.spool.id.clone(),
            packing: self.spool.packing,
            rest: self.rest,
            body: Body::Fed(pieces),
        }
    }
}

async fn read(
    spool: &Arc<Spool>,
    mut offset: u64,
    sender: &mpsc::Sender<Result<Bytes, BoxError>>,
) -> Result<(), BoxError> {
    let mut progress = spool.progress.clone();
    loop {
        let now =
            *progress.wait_for(|progress| progress.length > offset || progress.end != End::NotYet).await?;
        if now.length <= offset {
            return match now.end {
                End::Whole => Ok(()),
                End::Cut | End::NotYet => Err("the bundle was cut short".into()),
            };
        }
        let count = usize::try_from(now.length - offset).unwrap_or(usize::MAX).min(PIECE);
        let spool = Arc::clone(spool);
        let piece = tokio::task::spawn_blocking(move || {
            let mut piece = vec![0; count];
            spool.file.read_exact_at(&mut piece, offset).map(|()| piece)
        });
        let piece = piece.await??;
        offset += piece.len() as u64;
        if sender.send(Ok(piece.into())).await.is_err() {
            // The client has disconnected.
            return Ok(());
        }
    }
}

// === impl Packing ===

impl Packing {
    /// Returns the format for an `Accept` header; gzip unless it names zstd.
    pub(crate) fn accepted(accept: Option<&str>) -> Self {
        let named = |kind: &str| kind.split(';').next().is_some_and(|kind| kind.trim() == "application/zstd");
        if accept.is_some_and(|accept| accept.split(',').any(named)) { Self::Zstd } else { Self::Gzip }
    }

    pub(crate) fn media_type(self) -> &'static str {
        match self {
            Self::Gzip => "application/gzip",
            Self::Zstd => "application/zstd",
        }
    }

    pub(crate) fn extension(self) -> &'static str {
        match self {
            Self::Gzip => "tar.gz",
            Self::Zstd => "tar.zst",
        }
    }
}

// === impl GatherError ===

impl GatherError {
    pub(crate) fn code(&self) -> StatusCode {
        match self {
            Self::Busy => StatusCode::TOO_MANY_REQUESTS,
            Self::Ask(_) | Self::Place(_) => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zstd_is_for_those_who_name_it() {
        for (accept, expected) in [
            (None, Packing::Gzip),
            (Some("*/*"), Packing::Gzip),
            (Some("application/gzip"), Packing::Gzip),
            (Some("application/zstd"), Packing::Zstd),
            (Some("text/html, application/zstd;q=0.9"), Packing::Zstd),
            (Some("application/zstd-not"), Packing::Gzip),
        ] {
            assert_eq!(Packing::accepted(accept), expected, "{accept:?}");
        }
    }
}
