//! Memory for request bodies that are read as a whole: a server without memory cannot serve any client.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::StatusCode;
use hyper::body::Body;

use super::pending::network;
use super::{BodyLimits, BoxError};

/// A body above this size is accepted only while its sender uses at most as many bytes as are free. One stalled
/// sender occupies at most half of the budget, two occupy a third each, and a part always remains for others.
const SMALL_BODY: usize = 128 << 10;
/// A smaller body, such as an agent's own report, is accepted until its sender uses this many times the free bytes.
/// A fleet that shares a token is one sender, and a stalled holder of that token must not block the fleet's reports.
const SMALL_BODY_FACTOR: usize = 3;

/// Memory budget shared by the bodies of all senders. A body that arrives in one chunk does not count: it stays in the
/// connection's own buffer. Any other body releases its bytes when it is dropped.
#[derive(Clone, Debug)]
pub struct BodyBudget<C> {
    callers: Pool<C>,
    unauthenticated: Pool<IpAddr>,
    timeout: Duration,
}

#[derive(Debug, thiserror::Error)]
pub enum ReadBodyError {
    #[error("the body is larger than {max} bytes")]
    TooLarge { max: usize },
    #[error("the body took too long")]
    TimedOut,
    #[error("too much is being sent at once")]
    OverBudget,
    #[error("the body ended early")]
    Interrupted(#[source] BoxError),
}

/// Memory shared by senders of one kind.
#[derive(Clone, Debug)]
struct Pool<S>(Arc<Mutex<PoolState<S>>>);

#[derive(Debug)]
struct PoolState<S> {
    free: usize,
    /// Bytes in use by each sender that has any.
    used: HashMap<S, usize>,
}

/// A body and its part of the budget.
struct BudgetedBody<S: Clone + Eq + Hash> {
    bytes: BytesMut,
    pool: Pool<S>,
    sender: S,
    charged: usize,
}

// === impl BodyBudget ===

impl<C: Clone + Eq + Hash + Send + 'static> BodyBudget<C> {
    pub fn new(limits: BodyLimits) -> Self {
        Self {
            callers: Pool::new(limits.callers),
            unauthenticated: Pool::new(limits.unauthenticated),
            timeout: limits.timeout,
        }
    }

    /// Reads the complete body of an authenticated caller.
    pub async fn read(
        &self,
        caller: &C,
        body: impl Body<Data = Bytes, Error: Into<BoxError>> + Unpin,
        max: usize,
    ) -> Result<Bytes, ReadBodyError> {
        let reading = self.callers.read(caller, body, max);
        tokio::time::timeout(self.timeout, reading).await.unwrap_or(Err(ReadBodyError::TimedOut))
    }

    /// Reads the complete body of a client before its authentication.
    pub async fn read_unauthenticated(
        &self,
        client: Option<IpAddr>,
        body: impl Body<Data = Bytes, Error: Into<BoxError>> + Unpin,
        max: usize,
    ) -> Result<Bytes, ReadBodyError> {
        let network = network(client);
        let reading = self.unauthenticated.read(&network, body, max);
        tokio::time::timeout(self.timeout, reading).await.unwrap_or(Err(ReadBodyError::TimedOut))
    }
}

// === impl ReadBodyError ===

impl ReadBodyError {
    pub fn status(&self) -> StatusCode {
        match self {
            Self::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::TimedOut => StatusCode::REQUEST_TIMEOUT,
            Self::OverBudget => StatusCode::SERVICE_UNAVAILABLE,
            Self::Interrupted(_) => StatusCode::BAD_REQUEST,
        }
    }
}

// === impl Pool ===

impl<S: Clone + Eq + Hash + Send + 'static> Pool<S> {
    fn new(bytes: usize) -> Self {
        Self(Arc::new(Mutex::new(PoolState { free: bytes, used: HashMap::new() })))
    }

    async fn read(
        &self,
        sender: &S,
        mut body: impl Body<Data = Bytes, Error: Into<BoxError>> + Unpin,
        max: usize,
    ) -> Result<Bytes, ReadBodyError> {
        // Copied into one buffer: chunks of one byte each would use many times that memory.
        let new = || BudgetedBody {
            bytes: BytesMut::new(),
            pool: self.clone(),
            sender: sender.clone(),
            charged: 0,
        };
        let mut read = None;
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| ReadBodyError::Interrupted(error.into()))?;
            let Ok(chunk) = frame.into_data() else { continue };
            let length = read.as_ref().map_or(0, |read: &BudgetedBody<S>| read.bytes.len());
            if length + chunk.len() > max {
                return Err(ReadBodyError::TooLarge { max });
            }
            if read.is_none() && body.is_end_stream() {
                return Ok(chunk);
            }
            read.get_or_insert_with(new).add(&chunk)?;
        }
        Ok(read.map_or_else(Bytes::new, Bytes::from_owner))
    }
}

impl<S> Pool<S> {
    fn lock(&self) -> MutexGuard<'_, PoolState<S>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl PoolState ===

impl<S: Clone + Eq + Hash> PoolState<S> {
    /// Charges `more` bytes of a body that then has `length` bytes.
    fn charge(&mut self, sender: &S, more: usize, length: usize) -> Result<(), ReadBodyError> {
        let free = self.free.checked_sub(more).ok_or(ReadBodyError::OverBudget)?;
        let used = self.used.get(sender).copied().unwrap_or(0) + more;
        let factor = if length > SMALL_BODY { 1 } else { SMALL_BODY_FACTOR };
        if used > free.saturating_mul(factor) {
            return Err(ReadBodyError::OverBudget);
        }
        self.free = free;
        // The entry usually exists, so the sender is cloned only for its first bytes.
        match self.used.get_mut(sender) {
            Some(known) => *known = used,
            None => drop(self.used.insert(sender.clone(), used)),
        }
        Ok(())
    }

    fn release(&mut self, sender: &S, bytes: usize) {
        self.free += bytes;
        if let Some(used) = self.used.get_mut(sender) {
            *used -= bytes;
            if *used == 0 {
                self.used.remove(sender);
            }
        }
    }
}

// === impl BudgetedBody ===

impl<S: Clone + Eq + Hash> BudgetedBody<S> {
    fn add(&mut self, chunk: &[u8]) -> Result<(), ReadBodyError> {
        let length = self.bytes.len() + chunk.len();
        self.pool.lock().charge(&self.sender, chunk.len(), length)?;
        self.charged = length;
        self.bytes.extend_from_slice(chunk);
        Ok(())
    }
}

impl<S: Clone + Eq + Hash> AsRef<[u8]> for BudgetedBody<S> {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl<S: Clone + Eq + Hash> Drop for BudgetedBody<S> {
    fn drop(&mut self) {
        self.pool.lock().release(&self.sender, self.charged);
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::stream;
    use http_body_util::{Full, StreamBody};
    use hyper::body::Frame;
    use tokio::time::Instant;

    use super::*;

    const CHUNK: usize = 4 << 10;
    const LARGE: BodyLimits =
        BodyLimits { callers: 64 << 20, unauthenticated: 1 << 20, timeout: Duration::from_secs(30) };

    fn budget(callers: usize) -> BodyBudget<&'static str> {
        BodyBudget::new(BodyLimits { callers, ..LARGE })
    }

    fn chunks(length: usize, count: usize) -> impl Body<Data = Bytes, Error = Infallible> + Unpin {
        let chunk = Bytes::from(vec![b'x'; length]);
        StreamBody::new(stream::iter((0..count).map(move |_| Ok(Frame::data(chunk.clone())))))
    }

    fn whole(text: &'static str) -> Full<Bytes> {
        Full::from(text)
    }

    /// Returns bodies of `caller`, each of `count` chunks, all held until the budget rejects one.
    async fn hold(budget: &BodyBudget<&'static str>, caller: &'static str, count: usize) -> Vec<Bytes> {
        let mut held = Vec::new();
        while let Ok(body) = budget.read(&caller, chunks(CHUNK, count), LARGE.callers).await {
            held.push(body);
        }
        held
    }

    #[tokio::test]
    async fn body_occupies_its_bytes_until_it_is_dropped() {
        let budget = budget(4 * CHUNK);
        let free = || budget.callers.lock().free;
        let body = budget.read(&"a", chunks(CHUNK, 2), 100 * CHUNK).await.unwrap();
        assert_eq!((body.len(), free()), (2 * CHUNK, 2 * CHUNK));
        let rejected = budget.read(&"a", chunks(CHUNK, 2), 100 * CHUNK).await.unwrap_err();
        assert_eq!(rejected.status(), StatusCode::SERVICE_UNAVAILABLE);
        let part = body.slice(..1);
        drop(body);
        assert_eq!(free(), 2 * CHUNK, "a part of it is still there");
        drop(part);
        assert_eq!(free(), 4 * CHUNK);
        assert!(budget.callers.lock().used.is_empty(), "former senders are forgotten");
    }

    #[tokio::test]
    async fn rejected_body_releases_its_bytes() {
        let budget = budget(3 * CHUNK);
        let endless = chunks(CHUNK, usize::MAX);
        let rejected = budget.read(&"a", endless, 100 * CHUNK).await.unwrap_err();
        assert!(matches!(rejected, ReadBodyError::OverBudget), "{rejected:?}");
        assert_eq!(budget.callers.lock().free, 3 * CHUNK);
        assert_eq!(budget.read(&"a", whole("a report"), 100).await.unwrap(), "a report");
        for rejected in [
            budget.read(&"a", whole("a report"), 7).await,
            budget.read(&"a", chunks(CHUNK, 2), 2 * CHUNK - 1).await,
        ] {
            assert_eq!(rejected.unwrap_err().status(), StatusCode::PAYLOAD_TOO_LARGE);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn disconnect_and_timeout_release_the_bytes() {
        let budget = budget(4 * CHUNK);
        let begin = [Ok::<_, BoxError>(Frame::data(Bytes::from(vec![b'x'; CHUNK])))];
        let broken = stream::iter(begin.into_iter().chain([Err("reset".into())]));
        let interrupted = budget.read(&"a", StreamBody::new(broken), 2 * CHUNK).await.unwrap_err();
        assert_eq!(interrupted.status(), StatusCode::BAD_REQUEST);
        let stalled = || {
            let begin = stream::iter([Ok::<_, Infallible>(Frame::data(Bytes::from(vec![b'x'; CHUNK])))]);
            StreamBody::new(futures_util::StreamExt::chain(begin, stream::pending()))
        };
        let started = Instant::now();
        let late = budget.read(&"a", stalled(), 2 * CHUNK).await.unwrap_err();
        assert_eq!((late.status(), started.elapsed()), (StatusCode::REQUEST_TIMEOUT, LARGE.timeout));
        let cancelled = tokio::time::timeout(LARGE.timeout / 2, budget.read(&"a", stalled(), CHUNK)).await;
        assert!(cancelled.is_err());
        assert_eq!(budget.callers.lock().free, 4 * CHUNK);
    }

    #[tokio::test]
    async fn stalled_sender_leaves_memory_to_others() {
        const MIB: usize = (1 << 20) / CHUNK;
        let budget = budget(LARGE.callers);
        let large = hold(&budget, "shared token", MIB).await;
        assert_eq!(large.len(), 32, "half of the budget");
        // Other holders of the same token send bodies of the size of a report.
        let small = hold(&budget, "shared token", 2).await;
        assert!(small.len() > 1000, "{}", small.len());
        // Other callers can still send the largest report, even while many of them stall.
        let mut held = Vec::new();
        for caller in ["a", "b", "c", "d"] {
            let own = hold(&budget, caller, MIB).await;
            assert!(!own.is_empty(), "{caller}");
            held.push(own);
        }
        budget.read(&"e", chunks(CHUNK, 16), LARGE.callers).await.unwrap();
        drop((large, small, held));
        assert_eq!(budget.callers.lock().free, LARGE.callers);
    }

    #[tokio::test]
    async fn fleet_with_one_token_reports_at_the_same_time() {
        let budget = budget(LARGE.callers);
        let mut reports = Vec::new();
        for _ in 0..10_000 {
            reports.push(budget.read(&"token", chunks(CHUNK / 2, 2), LARGE.callers).await.unwrap());
        }
        drop(reports);
        // Two batches of the largest size, as many as are processed concurrently.
        let batch = || budget.read(&"token", chunks(CHUNK, (16 << 20) / CHUNK), LARGE.callers);
        let _both = (batch().await.unwrap(), batch().await.unwrap());
    }

    #[tokio::test]
    async fn unauthenticated_clients_use_a_budget_of_their_own() {
        let budget = budget(LARGE.callers);
        let client = |last: usize| format!("2001:db8::{last}").parse().ok();
        // Addresses of one subscriber are one sender.
        let mut held = Vec::new();
        while let Ok(body) = budget.read_unauthenticated(client(held.len()), chunks(CHUNK, 64), 1 << 20).await
        {
            held.push(body);
        }
        assert_eq!(held.len(), 2, "half of the budget");
        let other = Some("10.0.0.1".parse().unwrap());
        budget.read_unauthenticated(other, chunks(CHUNK, 16), 1 << 20).await.unwrap();
        assert_eq!(budget.callers.lock().free, LARGE.callers);
    }
}
