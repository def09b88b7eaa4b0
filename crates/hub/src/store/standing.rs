//! Sender trust, and the enrollment quota of shared credentials.

use std::mem;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::Refusal;

/// Number of nodes that one shared token may enroll per minute. A scale-up of 1,000 machines completes within three
/// minutes, and a leaked token cannot fill the store overnight unnoticed.
pub const NEW_NODES_A_MINUTE: u32 = 300;

const MINUTE: Duration = Duration::from_secs(60);

/// How far the sender of a report is trusted to be its node.
#[derive(Clone, Debug)]
pub enum Standing {
    /// The credential belongs to the node itself or to an operator.
    Trusted,
    /// Many nodes share the credential; only the node's key identifies the node.
    ByKey(Arc<Allowance>),
}

/// Remaining enrollment quota. Holds at most [`NEW_NODES_A_MINUTE`], and refills completely within a minute.
#[derive(Debug)]
pub struct Allowance {
    /// Time at which the quota is full again.
    full: Mutex<Instant>,
}

/// Quota used by the new nodes of a group. It is returned if the group is not stored, because the group or its
/// senders then retry.
#[derive(Debug, Default)]
pub(super) struct Taken(Vec<Arc<Allowance>>);

// === impl Standing ===

impl Standing {
    /// Checks whether a report about an unknown node may be stored.
    pub(super) fn admits_new(&self, key: Option<&[u8]>, taken: &mut Taken) -> Result<(), Refusal> {
        match self {
            Self::Trusted => Ok(()),
            Self::ByKey(_) if key.is_none() => Err(Refusal::NotSigned),
            Self::ByKey(allowance) if allowance.take(Instant::now()) => {
                taken.0.push(Arc::clone(allowance));
                Ok(())
            }
            Self::ByKey(_) => Err(Refusal::TooManyNew),
        }
    }

    /// Checks whether a report about a known node may be stored. `pinned` is the node's pinned key.
    pub(super) fn admits(&self, pinned: Option<&[u8]>, key: Option<&[u8]>) -> Result<(), Refusal> {
        match (pinned, self) {
            (Some(pinned), _) if key == Some(pinned) => Ok(()),
            (Some(_), _) => Err(Refusal::WrongKey),
            (None, Self::Trusted) => Ok(()),
            // Otherwise any holder of such a token could take over a node that does not sign.
            (None, Self::ByKey(_)) => Err(Refusal::KnownUnsigned),
        }
    }
}

// === impl Allowance ===

impl Default for Allowance {
    fn default() -> Self {
        Self { full: Mutex::new(Instant::now()) }
    }
}

impl Allowance {
    /// Uses one unit of the quota; returns false if none is left.
    fn take(&self, now: Instant) -> bool {
        let mut full = self.full.lock().unwrap_or_else(PoisonError::into_inner);
        let next = (*full).max(now) + MINUTE / NEW_NODES_A_MINUTE;
        if next.duration_since(now) > MINUTE {
            return false;
        }
        *full = next;
        true
    }

    fn give_back(&self) {
        let mut full = self.full.lock().unwrap_or_else(PoisonError::into_inner);
        *full = full.checked_sub(MINUTE / NEW_NODES_A_MINUTE).unwrap_or(*full);
    }

    /// Returns whether the quota is full.
    pub(crate) fn is_full(&self, now: Instant) -> bool {
        *self.full.lock().unwrap_or_else(PoisonError::into_inner) <= now
    }
}

// === impl Taken ===

impl Taken {
    /// Keeps the quota used: the group is stored.
    pub(super) fn keep(mut self) {
        mem::take(&mut self.0);
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.0.iter().for_each(|allowance| allowance.give_back());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_allowance_is_used_up_and_fills_up_again() {
        let (allowance, start) = (Allowance::default(), Instant::now());
        let taken = |now: Instant| (0..1000).filter(|_| allowance.take(now)).count();
        assert!(allowance.is_full(start + MINUTE));
        assert_eq!(taken(start), 300);
        assert_eq!(taken(start), 0);
        assert_eq!(taken(start + Duration::from_secs(1)), 5);
        assert_eq!(taken(start + Duration::from_secs(31)), 150);
        assert!(!allowance.is_full(start + Duration::from_secs(31)));
        assert_eq!(taken(start + Duration::from_secs(3600)), 300, "never more than a minute's worth");
    }

    #[test]
    fn what_is_not_stored_takes_nothing() {
        let allowance: Arc<Allowance> = Arc::default();
        let shared = Standing::ByKey(Arc::clone(&allowance));
        let mut taken = Taken::default();
        shared.admits_new(Some(&[1; 32]), &mut taken).unwrap();
        drop(taken);
        assert!(allowance.is_full(Instant::now()));
        let mut taken = Taken::default();
        shared.admits_new(Some(&[1; 32]), &mut taken).unwrap();
        taken.keep();
        assert!(!allowance.is_full(Instant::now()));
    }

    #[test]
    fn only_its_key_tells_which_of_many_a_node_is() {
        let shared = Standing::ByKey(Arc::default());
        let (own, other) = (&[1; 32][..], &[2; 32][..]);
        for (pinned, key, expected) in [
            (Some(own), Some(own), Ok(())),
            (Some(own), Some(other), Err(Refusal::WrongKey)),
            (Some(own), None, Err(Refusal::WrongKey)),
            (None, Some(own), Err(Refusal::KnownUnsigned)),
            (None, None, Err(Refusal::KnownUnsigned)),
        ] {
            assert_eq!(shared.admits(pinned, key), expected, "{pinned:?} {key:?}");
            let trusted = if pinned.is_none() { Ok(()) } else { expected };
            assert_eq!(Standing::Trusted.admits(pinned, key), trusted, "{pinned:?} {key:?}");
        }
        let mut taken = Taken::default();
        assert_eq!(shared.admits_new(None, &mut taken), Err(Refusal::NotSigned));
        assert_eq!(shared.admits_new(Some(own), &mut taken), Ok(()));
        assert_eq!(Standing::Trusted.admits_new(None, &mut taken), Ok(()));
        assert_eq!(taken.0.len(), 1);
    }
}
