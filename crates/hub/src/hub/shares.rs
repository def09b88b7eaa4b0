//! Turns at work that all callers share. Of each kind one credential has a part only: who brings much waits for themselves, and
//! not the others for them.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::access::Caller;

/// Turns of one kind, and what each credential may have of them.
#[derive(Debug)]
pub(super) struct Shares {
    pub(super) all: Arc<Semaphore>,
    /// Of one credential.
    turns: usize,
    /// Those that have a turn and those that wait for one.
    most: usize,
    /// Of each that has something, gone with the last of it.
    own: Mutex<Vec<(Caller, Weak<Semaphore>)>>,
}

/// To be kept as long as the work goes on.
#[derive(Debug)]
pub(crate) struct Turn {
    _all: OwnedSemaphorePermit,
    _own: Option<OwnedSemaphorePermit>,
}

// === impl Shares ===

impl Shares {
    /// So many turns in all, half of them for one credential, of which so many may have one or wait.
    pub(super) fn new(all: usize, most: usize) -> Self {
        Self { all: Arc::new(Semaphore::new(all)), turns: all / 2, most, own: Mutex::default() }
    }

    /// A turn, first of the caller's own and then of those all have; nothing when it does not come in time or too many wait.
    pub(super) async fn turn(&self, caller: &Caller, patience: Duration) -> Option<Turn> {
        let taking = async {
            let own = match caller {
                // Where nothing is asked, all callers are one.
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
        // Each who has a turn or waits for one holds it, and so do we.
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
