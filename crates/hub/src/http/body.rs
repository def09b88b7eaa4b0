//! Request bodies with a size limit and a deadline.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::{Body, HttpBody as _};
use axum::http::{HeaderMap, header};
use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt as _};
use http_body_util::BodyExt as _;
use tokio::time::Instant;

use crate::access::Caller;
use crate::bundles::{LEAST, MINUTE};
use crate::problem::Problem;
use crate::take::MAX_CONSOLE;
use crate::unpack::Packing;

/// Time within which a report or a batch must arrive.
const PATIENCE: Duration = Duration::from_secs(30);
/// Memory budget for complete and partial bodies. A body that arrives in one chunk does not count: it stays in the
/// connection's own buffer.
const ROOM: usize = 64 << 20;
/// Memory budget for bodies of unauthenticated clients, so that they cannot exhaust the budget of the nodes.
const STRANGERS_ROOM: usize = 1 << 20;
/// Memory budget for console captures: two of the largest size. They are few and large, and must not exhaust the
/// budget of the reports.
const CONSOLES_ROOM: usize = 2 * MAX_CONSOLE;
/// A body above this size is accepted only while its sender uses at most as many bytes as are free. One stalled
/// sender occupies at most half of the budget, two occupy a third each, and a part always remains for others.
const SMALL: usize = 128 << 10;
/// A smaller body, such as an agent's own report, is accepted until its sender uses this many times the free bytes.
/// A fleet that shares a token is one sender, and a stalled holder of that token must not block the fleet's reports.
const SMALL_TIMES: usize = 3;

#[derive(Debug, thiserror::Error)]
pub(super) enum Broken {
    #[error("the connection broke")]
    Connection(#[source] axum::Error),
    #[error("less than {} KiB came in a minute", LEAST >> 10)]
    Slow,
}

/// Memory budget shared by the bodies of all senders: a hub without memory cannot serve any client. A body releases
/// its bytes when it is dropped.
#[derive(Clone, Debug)]
pub(crate) struct Room(Arc<Mutex<Places>>);

#[derive(Debug)]
struct Places {
    free: usize,
    /// Bytes in use by each sender that has any.
    taken: HashMap<Sender, usize>,
}

/// The sender that a body's memory is charged to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Sender {
    Known(Caller),
    /// An unauthenticated client, by its address if known.
    Stranger(Option<IpAddr>),
}

/// A body and its share of the budget.
struct Held {
    bytes: BytesMut,
    room: Room,
    sender: Sender,
    taken: usize,
}

// === impl Room ===

impl Default for Room {
    fn default() -> Self {
        Self::of(ROOM)
    }
}

impl Room {
    pub(super) fn of_strangers() -> Self {
        Self::of(STRANGERS_ROOM)
    }

    pub(super) fn of_consoles() -> Self {
        Self::of(CONSOLES_ROOM)
    }

    fn of(bytes: usize) -> Self {
        Self(Arc::new(Mutex::new(Places { free: bytes, taken: HashMap::new() })))
    }

    /// Reads the complete body of an authenticated caller.
    pub(super) async fn whole(&self, caller: &Caller, body: Body, limit: usize) -> Result<Bytes, Problem> {
        self.in_time(body, limit, || Sender::Known(caller.clone())).await
    }

    pub(super) async fn whole_of_stranger(
        &self,
        address: Option<IpAddr>,
        body: Body,
        limit: usize,
    ) -> Result<Bytes, Problem> {
        self.in_time(body, limit, || Sender::Stranger(address)).await
    }

    async fn in_time(
        &self,
        body: Body,
        limit: usize,
        sender: impl FnOnce() -> Sender,
    ) -> Result<Bytes, Problem> {
        let gathered = tokio::time::timeout(PATIENCE, self.gather(body, limit, sender)).await;
        gathered.unwrap_or_else(|_| Err(Problem::new(408, "Too slow", "the body took too long")))
    }

    async fn gather(
        &self,
        mut body: Body,
        limit: usize,
        sender: impl FnOnce() -> Sender,
    ) -> Result<Bytes, Problem> {
        let too_large = |length: usize| {
            let detail = || format!("the body is larger than {limit} bytes");
            if length > limit { Err(Problem::new(413, "Too large", detail())) } else { Ok(()) }
        };
        let Some(first) = next_piece(&mut body).await? else { return Ok(Bytes::new()) };
        too_large(first.len())?;
        if body.is_end_stream() {
            return Ok(first);
        }
        // Copied into one buffer: chunks of one byte each would use many times that memory.
        let mut held = Held { bytes: BytesMut::new(), room: self.clone(), sender: sender(), taken: 0 };
        held.add(&first)?;
        drop(first);
        while let Some(piece) = next_piece(&mut body).await? {
            too_large(held.bytes.len() + piece.len())?;
            held.add(&piece)?;
        }
        Ok(Bytes::from_owner(held))
    }

    fn lock(&self) -> MutexGuard<'_, Places> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the next chunk of a body.
async fn next_piece(body: &mut Body) -> Result<Option<Bytes>, Problem> {
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| Problem::new(400, "Not understood", "the body ended early"))?;
        if let Ok(piece) = frame.into_data() {
            return Ok(Some(piece));
        }
    }
    Ok(None)
}

// === impl Places ===

impl Places {
    /// Charges `more` bytes of a body that then has `length` bytes.
    fn take(&mut self, sender: &Sender, more: usize, length: usize) -> Result<(), Problem> {
        let full = || Problem::new(503, "Try again later", "too much is being sent to this hub at once");
        let free = self.free.checked_sub(more).ok_or_else(full)?;
        let own = self.taken.get(sender).copied().unwrap_or(0) + more;
        let times = if length > SMALL { 1 } else { SMALL_TIMES };
        if own > free.saturating_mul(times) {
            return Err(full());
        }
        self.free = free;
        // The entry usually exists, so the sender is cloned only for its first bytes.
        match self.taken.get_mut(sender) {
            Some(taken) => *taken = own,
            None => drop(self.taken.insert(sender.clone(), own)),
        }
        Ok(())
    }

    fn give_back(&mut self, sender: &Sender, bytes: usize) {
        self.free += bytes;
        if let Some(taken) = self.taken.get_mut(sender) {
            *taken -= bytes;
            if *taken == 0 {
                self.taken.remove(sender);
            }
        }
    }
}

// === impl Held ===

impl Held {
    fn add(&mut self, piece: &[u8]) -> Result<(), Problem> {
        let length = self.bytes.len() + piece.len();
        self.room.lock().take(&self.sender, piece.len(), length)?;
        self.taken = length;
        self.bytes.extend_from_slice(piece);
        Ok(())
    }
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.room.lock().give_back(&self.sender, self.taken);
    }
}

/// Returns a bundle as a stream with a minimum rate. Each minute is checked only after it ends, while the hub waits
/// for the sender. A slow hub therefore does not disconnect a sender.
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

    const PIECE: usize = 4 << 10;

    fn in_pieces(count: usize) -> Body {
        let pieces = (0..count).map(|_| Ok::<_, Broken>(Bytes::from(vec![b'x'; PIECE])));
        Body::from_stream(futures_util::stream::iter(pieces))
    }

    fn node(name: &str) -> Caller {
        Caller::Node(crate::name::NodeName::new(name).unwrap())
    }

    /// Returns bodies of `caller`, each of `pieces` chunks, all held until the budget rejects one.
    async fn stalled(room: &Room, caller: &Caller, pieces: usize) -> Vec<Bytes> {
        let mut held = Vec::new();
        while let Ok(body) = room.whole(caller, in_pieces(pieces), ROOM).await {
            held.push(body);
        }
        held
    }

    #[tokio::test]
    async fn a_body_takes_its_room_until_it_is_gone() {
        let room = Room::of(4 * PIECE);
        let whole = room.whole(&node("n1"), in_pieces(2), 100 * PIECE).await.unwrap();
        assert_eq!((whole.len(), room.lock().free), (2 * PIECE, 2 * PIECE));
        assert_eq!(room.whole(&node("n1"), in_pieces(2), 100 * PIECE).await.unwrap_err().status, 503);
        let part = whole.slice(..1);
        drop(whole);
        assert_eq!(room.lock().free, 2 * PIECE, "a part of it is still there");
        drop(part);
        assert_eq!(room.lock().free, 4 * PIECE);
        assert!(room.lock().taken.is_empty(), "nobody is remembered for what is gone");
    }

    #[tokio::test]
    async fn bodies_that_are_not_whole_have_a_bound_all_together() {
        let room = Room::of(3 * PIECE);
        let (sender, pieces) = tokio::sync::mpsc::channel::<Result<Bytes, Broken>>(1);
        let pieces =
            futures_util::stream::unfold(pieces, |mut pieces| async { Some((pieces.recv().await?, pieces)) });
        let sending = async { while sender.send(Ok(Bytes::from(vec![b'x'; PIECE]))).await.is_ok() {} };
        let caller = node("n1");
        let (full, ()) = tokio::join!(room.whole(&caller, Body::from_stream(pieces), 100 * PIECE), sending);
        let full = full.unwrap_err();
        assert_eq!((full.status, full.retry), (503, true), "{full:?}");
        assert_eq!(room.lock().free, 3 * PIECE, "who is sent away leaves nothing behind");
        let whole = room.whole(&caller, Body::from("a report"), 100).await.unwrap();
        assert_eq!(whole, "a report");
        let large = room.whole(&caller, Body::from("a report"), 7).await.unwrap_err();
        assert_eq!(large.status, 413);
        let large = room.whole(&caller, in_pieces(2), 2 * PIECE - 1).await.unwrap_err();
        assert_eq!(large.status, 413);
    }

    #[tokio::test]
    async fn one_who_stalls_leaves_room_for_the_others() {
        const MIB: usize = (1 << 20) / PIECE;
        let room = Room::default();
        let token = Caller::Nodes { prefix: String::new(), token: [7; 32] };
        let large = stalled(&room, &token, MIB).await;
        assert_eq!(large.len(), 32, "half of the room");
        // Other holders of the same token send bodies of the size of a report.
        let small = stalled(&room, &token, 2).await;
        assert!(small.len() > 1000, "{}", small.len());
        // Other callers can still send the largest report, even while many of them stall.
        let others: Vec<_> = (0..4).map(|number| node(&format!("n{number}"))).collect();
        let mut held = Vec::new();
        for caller in &others {
            let own = stalled(&room, caller, MIB).await;
            assert!(!own.is_empty(), "{caller:?}");
            held.push(own);
        }
        room.whole(&node("n9"), in_pieces(16), ROOM).await.unwrap();
        drop((large, small, held));
        assert_eq!(room.lock().free, ROOM);
    }

    #[tokio::test]
    async fn a_fleet_that_shares_a_token_reports_all_at_once() {
        let room = Room::default();
        let token = Caller::Nodes { prefix: String::new(), token: [7; 32] };
        let mut reports = Vec::new();
        for _ in 0..10_000 {
            let pieces = [Bytes::from(vec![b'x'; PIECE / 2]), Bytes::from(vec![b'x'; PIECE / 2])];
            let pieces = futures_util::stream::iter(pieces.map(Ok::<_, Broken>));
            reports.push(room.whole(&token, Body::from_stream(pieces), ROOM).await.unwrap());
        }
        // Two batches of the largest size, as many as are processed concurrently.
        drop(reports);
        let batch = || room.whole(&token, in_pieces((16 << 20) / PIECE), ROOM);
        let _both = (batch().await.unwrap(), batch().await.unwrap());
    }

    /// A bundle of which this many bytes arrive every 10 s.
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
        // A fast start does not extend the deadline of the next minute.
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
