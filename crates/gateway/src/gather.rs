//! Bundles for many from one collection. What is collected goes into a file without a name; everybody who asked reads it
//! from its beginning at their own speed, and whoever lost the connection goes on where they were.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::{Response, StatusCode};
use jiff::Timestamp;
use landfall_model::chain;
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore, mpsc, watch};

use crate::body::{Body, BoxError};
use crate::collector::{AskError, BUNDLE_ID, Collector};

/// Nobody's logs are larger, and nobody's disk should be filled by them.
const MAX_BUNDLE: u64 = 4 * 1024 * 1024 * 1024;
/// Read at once for one client.
const PIECE: usize = 128 * 1024;
const PIECES: usize = 2;
/// Clients that read bundles at the same time.
const MAX_READERS: usize = 16;
/// How long a finished bundle is kept for those who were cut off.
const KEPT_FOR: Duration = Duration::from_secs(600);
/// A collection that sends nothing for so long is over. Collectors bound each item well below this.
const SILENCE: Duration = Duration::from_secs(300);
/// Where a bundle may lie; the place with most room is taken.
const PLACES: [&str; 4] = ["/var/lib/landfall", "/var/tmp", "/tmp", "/run"];

/// How a bundle is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Packing {
    Gzip,
    Zstd,
}

/// Which part of which bundle is wanted.
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

/// A bundle to be read.
pub(crate) struct Bundle {
    pub(crate) id: String,
    pub(crate) packing: Packing,
    /// Where it begins and how long it is in all, when it is the rest of one.
    pub(crate) rest: Option<(u64, u64)>,
    pub(crate) body: Body,
}

#[derive(Debug)]
pub(crate) struct Gathers {
    collector: Collector,
    current: Mutex<Option<Arc<Spool>>>,
    readers: Arc<Semaphore>,
}

/// A bundle in its file, being written or finished.
#[derive(Debug)]
struct Spool {
    id: String,
    packing: Packing,
    /// What was written before is not in it.
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

    /// A bundle: the one being made, if there is one; the rest of the one that is kept, if that is wanted; else a new one.
    /// The flag tells whether this began a collection.
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
            // Whoever reads zstd reads gzip; not everybody who reads gzip reads zstd. More than was asked for will do.
            let enough = spool.since.is_none_or(|from| since.is_some_and(|since| since >= from));
            if enough && (spool.packing == packing || spool.packing == Packing::Gzip) {
                let spool = Arc::clone(spool);
                return Ok((Reading { spool, rest: None }.into_body(turn), false));
            }
            // One collection at a time: this one first.
            let mut progress = spool.progress.clone();
            let _ = progress.wait_for(|progress| progress.end != End::NotYet).await;
        }
        // The kept one makes room before the next is written.
        *current = None;
        let asked = self.collector.bundle(packing == Packing::Zstd, since).await;
        let answer = asked.map_err(GatherError::Ask)?;
        let spool = Arc::new(Spool::fill(answer, packing, since).map_err(GatherError::Place)?);
        *current = Some(Arc::clone(&spool));
        Ok((Reading { spool, rest: None }.into_body(turn), true))
    }

    /// The rest of a bundle that is still known, once it is whole.
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
    /// Begins to write an answer of the collector into a file.
    fn fill(answer: Response<Incoming>, packing: Packing, since: Option<Timestamp>) -> io::Result<Self> {
        let id =
            answer.headers().get(BUNDLE_ID).and_then(|id| id.to_str().ok()).unwrap_or("unknown").to_owned();
        let file = place()?;
        let writer = file.try_clone()?;
        let (sender, progress) = watch::channel(Progress { length: 0, end: End::NotYet });
        tokio::spawn(write(answer.into_body(), writer, sender));
        Ok(Self { id, packing, since, file, progress, started: Instant::now() })
    }

    fn is_open(&self) -> bool {
        self.progress.borrow().end == End::NotYet
    }
}

/// A file without a name, where there is most room.
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

/// Writes all that comes. Goes on when nobody reads: who was cut off comes back.
async fn write(mut body: Incoming, file: File, progress: watch::Sender<Progress>) {
    let file = Arc::new(file);
    let mut length = 0;
    let end = loop {
        let piece = match tokio::time::timeout(SILENCE, body.frame()).await {
            Ok(Some(Ok(frame))) => match frame.into_data() {
                Ok(piece) => piece,
                Err(_) => continue,
            },
            Ok(None) => break End::Whole,
            Ok(Some(Err(error))) => {
                tracing::warn!(error = %chain(&error), "the collector broke off");
                break End::Cut;
            }
            Err(_) => break End::Cut,
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

/// A bundle and which part of it.
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
                // The reader sees a stream without its end; if it is gone, it need not.
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
            // The client is gone.
            return Ok(());
        }
    }
}

// === impl Packing ===

impl Packing {
    /// What a client wants, by its `Accept`; gzip unless it names zstd.
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
