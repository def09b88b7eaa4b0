//! Permits for work shared by all callers.
//!
//! One credential gets only a part of them, so a caller with many requests delays only itself.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::access::Caller;

/// Permits of one kind, and the limits per credential.
#[derive(Debug)]
pub(super) struct Shares {
    pub(super) all: Arc<Semaphore>,
    /// Maximum number of permits per credential.
    turns: usize,
    /// Maximum number of granted and queued requests per credential.
    most: usize,
    /// Permits of each active credential; an entry expires with its last request.
    own: Mutex<Vec<(Caller, Weak<Semaphore>)>>,
}

/// A permit, held while the work runs.
#[derive(Debug)]
pub(crate) struct Turn {
    _all: OwnedSemaphorePermit,
    _own: Option<OwnedSemaphorePermit>,
}

// === impl Shares ===

impl Shares {
    /// Creates `all` permits. One credential may hold half of them, with at most `most` requests granted or queued.
    pub(super) fn new(all: usize, most: usize) -> Self {
        Self { all: Arc::new(Semaphore::new(all)), turns: all / 2, most, own: Mutex::default() }
    }

    /// Acquires the caller's own permit and then a shared one. Returns `None` after the timeout, or if too many
    /// requests are queued.
    pub(super) async fn turn(&self, caller: &Caller, patience: Duration) -> Option<Turn> {
        let taking = async {
            let own = match caller {
                // Without authentication, all callers are the same.
                Caller::Anyone => None,
                _ => Some(self.own(caller)?.acquire_owned().await.ok()?),
            };
            let all = Arc::clone(&self.all).acquire_owned().await.ok()?;
            Some(Turn { _all: all, _own: own })
        };
        tokio::time::timeout(patience, taking).await.ok().flatten()
    }

    fn own(&self, caller: &Caller) -> Option<Arc<Semaphore>> {
        let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        own.retain(|(_, turns)| turns.strong_count() > 0);
        let known = own.iter().find(|(other, _)| other == caller).and_then(|(_, turns)| turns.upgrade());
        let turns = known.unwrap_or_else(|| {
            let turns = Arc::new(Semaphore::new(self.turns));
            own.retain(|(other, _)| other != caller);
            own.push((caller.clone(), Arc::downgrade(&turns)));
            turns
        });
        // Every granted or queued request of the credential holds a reference, and so does this one.
        (Arc::strong_count(&turns) <= self.most).then_some(turns)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    #[tokio::test(start_paused = true)]
    async fn one_credential_leaves_turns_to_the_others() {
        let shares = Shares::new(2, 3);
        let token = Caller::Nodes { prefix: String::new(), token: [7; 32] };
        let first = shares.turn(&token, PATIENCE).await.unwrap();
        assert!(shares.turn(&token, PATIENCE).await.is_none(), "the second waits in vain");
        let viewer = Caller::Viewer("vic".to_owned());
        let other = shares.turn(&viewer, PATIENCE).now_or_never().flatten().unwrap();
        let mut waiting = [Box::pin(shares.turn(&token, PATIENCE)), Box::pin(shares.turn(&token, PATIENCE))];
        assert!(waiting.iter_mut().all(|turn| turn.now_or_never().is_none()));
        let beyond = shares.turn(&token, PATIENCE).now_or_never();
        assert!(matches!(beyond, Some(None)), "{beyond:?}");
        drop(first);
        let [second, third] = waiting;
        let second = second.await.unwrap();
        drop((second, other));
        drop(third.await.unwrap());
        shares.own(&viewer).unwrap();
        assert_eq!(shares.own.lock().unwrap().len(), 1, "nobody is remembered for what is done");
    }

    #[tokio::test]
    async fn where_nothing_is_asked_all_turns_are_for_all() {
        let shares = Shares::new(2, 1);
        let turn = || shares.turn(&Caller::Anyone, PATIENCE);
        let _both = (turn().await.unwrap(), turn().await.unwrap());
    }
}
