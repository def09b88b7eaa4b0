//! Bodies of requests, with a bound and a deadline.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, HttpBody as _};
use axum::http::{HeaderMap, header};
use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt as _};
use http_body_util::BodyExt as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use crate::problem::Problem;
use crate::take::MAX_CONSOLE;
use crate::unpack::Packing;

/// How long a report or a batch may take to arrive.
const PATIENCE: Duration = Duration::from_secs(30);
/// All that may be in memory at once of bodies, whole or not, in units of this many bytes: 64 MiB. What comes in one piece is
/// not counted: it lies in the connection's own buffer.
const UNIT: usize = 1 << 10;
const ROOM: usize = 64 << 10;
/// The same for those who are not known yet, so that no stranger can use up the room of nodes: 1 MiB.
const STRANGERS_ROOM: usize = 1 << 10;
/// The same for consoles, which are few and large, so that they never use up the room of reports: two whole ones.
const CONSOLES_ROOM: usize = 2 * MAX_CONSOLE / UNIT;
/// What has to come of a bundle in every minute of its way, some 35 kbit/s: its place is for one who sends.
const LEAST: usize = 256 << 10;
const MINUTE: Duration = Duration::from_secs(60);

#[derive(Debug, thiserror::Error)]
pub(super) enum Broken {
    #[error("the connection broke")]
    Connection(#[source] axum::Error),
    #[error("less than {} KiB came in a minute", LEAST >> 10)]
    Slow,
}

/// Where bodies are put together, of everybody at once: a hub that runs out of memory serves nobody. A body takes its room
/// with it until it is gone.
#[derive(Clone, Debug)]
pub(crate) struct Room(Arc<Semaphore>);

/// A body and the room it takes.
struct Held {
    bytes: BytesMut,
    _room: Option<OwnedSemaphorePermit>,
}

// === impl Room ===

impl Default for Room {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(ROOM)))
    }
}

impl Room {
    pub(super) fn of_strangers() -> Self {
        Self(Arc::new(Semaphore::new(STRANGERS_ROOM)))
    }

    pub(super) fn of_consoles() -> Self {
        Self(Arc::new(Semaphore::new(CONSOLES_ROOM)))
    }

    pub(super) async fn whole(&self, body: Body, limit: usize) -> Result<Bytes, Problem> {
        let gathered = tokio::time::timeout(PATIENCE, self.gather(body, limit)).await;
        gathered.unwrap_or_else(|_| Err(Problem::new(408, "Too slow", "the body took too long")))
    }

    async fn gather(&self, mut body: Body, limit: usize) -> Result<Bytes, Problem> {
        // Copied together: pieces of a byte each would cost many times what they hold.
        let mut gathered = BytesMut::new();
        let mut held = None;
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|_| Problem::new(400, "Not understood", "the body ended early"))?;
            let Ok(piece) = frame.into_data() else { continue };
            let length = gathered.len() + piece.len();
            if length > limit {
                return Err(Problem::new(413, "Too large", format!("the body is larger than {limit} bytes")));
            }
            if gathered.is_empty() && body.is_end_stream() {
                return Ok(piece);
            }
            self.hold(&mut held, length)?;
            gathered.extend_from_slice(&piece);
        }
        Ok(Bytes::from_owner(Held { bytes: gathered, _room: held }))
    }

    /// Takes as much room as this many bytes need.
    fn hold(&self, held: &mut Option<OwnedSemaphorePermit>, bytes: usize) -> Result<(), Problem> {
        let missing = bytes.div_ceil(UNIT) - held.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let more = u32::try_from(missing).ok();
        let more = more.and_then(|more| Arc::clone(&self.0).try_acquire_many_owned(more).ok());
        let full = || Problem::new(503, "Try again later", "too much is being sent to this hub at once");
        let more = more.ok_or_else(full)?;
        match held {
            Some(held) => held.merge(more),
            None => *held = Some(more),
        }
        Ok(())
    }
}

// === impl Held ===

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// A bundle as it comes. Each minute is looked at when it is over and the sender is waited for: a hub that is slow itself
/// blames nobody.
pub(super) fn stream(body: Body) -> impl Stream<Item = Result<Bytes, Broken>> + Unpin {
    let begun = (body.into_data_stream(), Instant::now() + MINUTE, 0);
    let chunks = futures_util::stream::unfold(Some(begun), async |state| {
        let (mut chunks, mut until, mut came) = state?;
        loop {
            match tokio::time::timeout_at(until, chunks.next()).await {
                Ok(Some(Ok(chunk))) => {
                    came += chunk.len();
                    return Some((Ok(chunk), Some((chunks, until, came))));
                }
                Ok(Some(Err(error))) => return Some((Err(Broken::Connection(error)), None)),
                Ok(None) => return None,
                Err(_) if came < LEAST => return Some((Err(Broken::Slow), None)),
                Err(_) => (until, came) = (Instant::now() + MINUTE, 0),
            }
        }
    });
    Box::pin(chunks)
}

pub(super) fn packing(headers: &HeaderMap) -> Result<Packing, Problem> {
    let name = headers.get(header::CONTENT_ENCODING).map(|value| value.to_str().unwrap_or("?"));
    Ok(Packing::named(name)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_pieces(count: usize) -> Body {
        let pieces = (0..count).map(|_| Ok::<_, Broken>(Bytes::from(vec![b'x'; 4 * UNIT])));
        Body::from_stream(futures_util::stream::iter(pieces))
    }

    #[tokio::test]
    async fn a_body_takes_its_room_until_it_is_gone() {
        let room = Room(Arc::new(Semaphore::new(10)));
        let whole = room.whole(in_pieces(2), 100 * UNIT).await.unwrap();
        assert_eq!((whole.len(), room.0.available_permits()), (8 * UNIT, 2));
        assert_eq!(room.whole(in_pieces(2), 100 * UNIT).await.unwrap_err().status, 503);
        let part = whole.slice(..1);
        drop(whole);
        assert_eq!(room.0.available_permits(), 2, "a part of it is still there");
        drop(part);
        assert_eq!(room.0.available_permits(), 10);
    }

    #[tokio::test]
    async fn bodies_that_are_not_whole_have_a_bound_all_together() {
        let room = Room(Arc::new(Semaphore::new(10)));
        let (sender, pieces) = tokio::sync::mpsc::channel::<Result<Bytes, Broken>>(1);
        let pieces =
            futures_util::stream::unfold(pieces, |mut pieces| async { Some((pieces.recv().await?, pieces)) });
        let sending = async { while sender.send(Ok(Bytes::from(vec![b'x'; 4 * UNIT]))).await.is_ok() {} };
        let (full, ()) = tokio::join!(room.whole(Body::from_stream(pieces), 100 * UNIT), sending);
        let full = full.unwrap_err();
        assert_eq!((full.status, full.retry), (503, true), "{full:?}");
        assert_eq!(room.0.available_permits(), 10, "who is sent away leaves nothing behind");
        let whole = room.whole(Body::from("a report"), 100).await.unwrap();
        assert_eq!(whole, "a report");
        let large = room.whole(Body::from("a report"), 7).await.unwrap_err();
        assert_eq!(large.status, 413);
    }
    /// A bundle of which this many bytes come every ten seconds.
    fn every_ten_seconds(bytes: usize, times: usize) -> Body {
        let pieces = futures_util::stream::unfold(0, move |sent| async move {
            tokio::time::sleep(Duration::from_secs(10)).await;
            (sent < times).then(|| (Ok::<_, Broken>(Bytes::from(vec![b'x'; bytes])), sent + 1))
        });
        Body::from_stream(pieces)
    }

    #[tokio::test(start_paused = true)]
    async fn who_sends_a_bundle_by_drops_is_sent_away_after_a_minute() {
        let begun = Instant::now();
        let drops: Vec<_> = stream(every_ten_seconds(1, 1000)).collect().await;
        assert!(matches!(drops.last(), Some(Err(Broken::Slow))), "{drops:?}");
        assert_eq!(begun.elapsed(), MINUTE);
        // One that began well has no longer than the others.
        let begun = Instant::now();
        let head = stream(Body::from_stream(
            futures_util::stream::iter([Ok::<_, Broken>(Bytes::from(vec![b'x'; LEAST]))])
                .chain(futures_util::stream::pending()),
        ));
        let head: Vec<_> = head.collect().await;
        assert!(matches!(head[..], [Ok(_), Err(Broken::Slow)]), "{head:?}");
        assert_eq!(begun.elapsed(), 2 * MINUTE);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_bundle_comes_whole() {
        let pieces: Vec<_> = stream(every_ten_seconds(LEAST / 5, 100)).collect().await;
        assert!(pieces.len() == 100 && pieces.iter().all(Result::is_ok));
        let small: Vec<_> = stream(every_ten_seconds(1, 3)).collect().await;
        assert!(small.len() == 3 && small.iter().all(Result::is_ok), "what is small is soon whole");
    }
}
