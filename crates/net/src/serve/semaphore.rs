//! Permits for concurrent work, with a limit per caller: a caller with many requests delays only itself.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinError;

use super::PermitLimits;

/// A semaphore with limits per caller and a bounded queue. `None` is a caller without an own limit.
#[derive(Debug)]
pub struct CallerSemaphore<C> {
    granted: Permits<C>,
    /// Granted and queued requests.
    admitted: Permits<C>,
    queue_timeout: Duration,
}

/// A permit, released on drop.
#[derive(Debug)]
pub struct Permit {
    // Released first, so that an admitted request of a semaphore without a queue finds a permit.
    _granted: PermitPair,
    _admitted: PermitPair,
}

/// The caller's permit and the shared one.
type PermitPair = (Option<OwnedSemaphorePermit>, OwnedSemaphorePermit);

#[derive(Debug)]
struct Permits<C> {
    shared: Arc<Semaphore>,
    per_caller: usize,
    /// The active callers; an entry expires with its last request.
    callers: Mutex<HashMap<C, Weak<Semaphore>>>,
}

// === impl CallerSemaphore ===

impl<C: Clone + Eq + Hash> CallerSemaphore<C> {
    pub fn new(limits: PermitLimits) -> Self {
        let PermitLimits { total, per_caller, queue, queue_per_caller, queue_timeout } = limits;
        Self {
            granted: Permits::new(total, per_caller),
            admitted: Permits::new(total + queue, per_caller + queue_per_caller),
            queue_timeout,
        }
    }

    /// Waits for a permit. Returns `None` after the timeout, or immediately if the queue is full.
    pub async fn acquire(&self, caller: Option<&C>) -> Option<Permit> {
        let admitted = self.admitted.try_acquire(caller)?;
        let granted = tokio::time::timeout(self.queue_timeout, self.granted.acquire(caller)).await.ok()??;
        Some(Permit { _granted: granted, _admitted: admitted })
    }

    pub fn try_acquire(&self, caller: Option<&C>) -> Option<Permit> {
        let admitted = self.admitted.try_acquire(caller)?;
        Some(Permit { _granted: self.granted.try_acquire(caller)?, _admitted: admitted })
    }

    /// Returns the number of free permits.
    pub fn available(&self) -> usize {
        self.granted.shared.available_permits()
    }
}

// === impl Permit ===

impl Permit {
    /// Runs the work on the blocking pool. A caller that disconnects does not stop the work, and does not free the permit.
    pub async fn run_blocking<T: Send + 'static>(
        self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<(T, Self), JoinError> {
        tokio::task::spawn_blocking(move || (work(), self)).await
    }
}

// === impl Permits ===

impl<C: Clone + Eq + Hash> Permits<C> {
    fn new(total: usize, per_caller: usize) -> Self {
        Self { shared: Arc::new(Semaphore::new(total)), per_caller, callers: Mutex::default() }
    }

    /// The shared permit is acquired last: a caller that waits for its own permit does not hold one of the others.
    async fn acquire(&self, caller: Option<&C>) -> Option<PermitPair> {
        let own = match caller {
            Some(caller) => Some(self.own(caller).acquire_owned().await.ok()?),
            None => None,
        };
        Some((own, Arc::clone(&self.shared).acquire_owned().await.ok()?))
    }

    fn try_acquire(&self, caller: Option<&C>) -> Option<PermitPair> {
        let own = match caller {
            Some(caller) => Some(self.own(caller).try_acquire_owned().ok()?),
            None => None,
        };
        Some((own, Arc::clone(&self.shared).try_acquire_owned().ok()?))
    }

    fn own(&self, caller: &C) -> Arc<Semaphore> {
        let mut callers = self.callers.lock().unwrap_or_else(PoisonError::into_inner);
        callers.retain(|_, own| own.strong_count() > 0);
        if let Some(own) = callers.get(caller).and_then(Weak::upgrade) {
            return own;
        }
        let own = Arc::new(Semaphore::new(self.per_caller));
        callers.insert(caller.clone(), Arc::downgrade(&own));
        own
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    const LIMITS: PermitLimits = PermitLimits::new(2, 1).queue(3, 2, Duration::from_secs(30));

    #[tokio::test(start_paused = true)]
    async fn one_caller_leaves_permits_to_others() {
        let semaphore = CallerSemaphore::new(LIMITS);
        let first = semaphore.acquire(Some(&"a")).await.unwrap();
        assert!(semaphore.acquire(Some(&"a")).await.is_none(), "the second one times out");
        let mut queued = [Box::pin(semaphore.acquire(Some(&"a"))), Box::pin(semaphore.acquire(Some(&"a")))];
        assert!(queued.iter_mut().all(|permit| permit.now_or_never().is_none()));
        assert!(matches!(semaphore.acquire(Some(&"a")).now_or_never(), Some(None)), "the own queue is full");
        let other = semaphore.acquire(Some(&"b")).now_or_never().flatten().unwrap();
        let mut third = Box::pin(semaphore.acquire(Some(&"c")));
        assert!(third.as_mut().now_or_never().is_none());
        assert!(matches!(semaphore.acquire(Some(&"d")).now_or_never(), Some(None)), "the queue is full");
        drop((first, third));
        let [second, fourth] = queued;
        let second = second.await.unwrap();
        drop((second, other));
        drop(fourth.await.unwrap());
        assert_eq!(semaphore.available(), LIMITS.total);
        drop(semaphore.granted.own(&"e"));
        assert_eq!(semaphore.granted.callers.lock().unwrap().len(), 1, "former callers are forgotten");
    }

    #[tokio::test]
    async fn semaphore_without_queue_rejects_immediately() {
        let semaphore = CallerSemaphore::new(PermitLimits::new(4, 2));
        let of = |caller| std::iter::from_fn(|| semaphore.try_acquire(caller)).collect::<Vec<_>>();
        let first = of(Some(&"a"));
        let second = of(Some(&"b"));
        assert_eq!((first.len(), second.len(), of(Some(&"c")).len()), (2, 2, 0));
        drop(first);
        assert_eq!(semaphore.acquire(Some(&"c")).now_or_never().map(|permit| permit.is_some()), Some(true));
        drop(second);
        assert_eq!(of(None).len(), 4, "without an own limit");
    }
}
