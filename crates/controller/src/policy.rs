//! The operator's limits: how many nodes at the same time, when, and with which timeouts.

use std::str::FromStr;
use std::time::Duration;

use crate::window::Window;

/// The rules of a rollout.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Limit of unavailable nodes, including those unavailable for other reasons.
    pub max_unavailable: AtOnce,
    /// Pause between the end of one node and the start of the next.
    pub pause: Duration,
    /// Times at which a node may start; empty for any time.
    pub windows: Vec<Window>,
    /// Limit of failed nodes; above it, no further node starts.
    pub max_failed: usize,
    pub drain: Drain,
    /// Timeout from the handover to the node's first state.
    pub claim_within: Duration,
    /// Timeout from the handover to the node's return.
    pub return_within: Duration,
    pub secrets: Secrets,
    pub approvals: Approvals,
}

/// Rules of a drain.
#[derive(Clone, Debug)]
pub struct Drain {
    /// Timeout for all pods together.
    pub within: Duration,
    /// Grace period of each pod, instead of the pod's own.
    pub grace: Option<Duration>,
    /// Treatment of pods without a controller that would recreate them.
    pub unmanaged: Unasked,
    /// Treatment of pods with local data (`emptyDir`), which eviction deletes.
    pub local_data: Unasked,
}

/// Treatment of pods whose eviction loses something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unasked {
    Evict,
    /// The pod blocks the drain until an administrator deletes it.
    Leave,
}

/// The source of a node's Secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Secrets {
    /// An administrator creates it; until then the node is not changed.
    Given,
    /// Created from a template when the node starts, unless an administrator has created one.
    Template,
}

/// Whether the controller approves certificates of nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Approvals {
    Never,
    /// For nodes in an in-place bootstrap, if every part of the request is verified to be of that node.
    Proven {
        /// Users that may request a first certificate, in addition to members of `system:bootstrappers`.
        bootstrap_users: Vec<String>,
    },
}

/// A number of nodes, or a percentage of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtOnce {
    Nodes(usize),
    Percent(u8),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is neither a number of nodes nor a share such as `10%`")]
pub struct AtOnceError {
    text: String,
}

// === impl Policy ===

impl Default for Policy {
    fn default() -> Self {
        Self {
            max_unavailable: AtOnce::Nodes(1),
            pause: Duration::ZERO,
            windows: Vec::new(),
            max_failed: 0,
            drain: Drain {
                within: Duration::from_secs(60 * 60),
                grace: None,
                unmanaged: Unasked::Leave,
                local_data: Unasked::Leave,
            },
            claim_within: Duration::from_secs(15 * 60),
            return_within: Duration::from_secs(3 * 60 * 60),
            secrets: Secrets::Given,
            approvals: Approvals::Never,
        }
    }
}

// === impl AtOnce ===

impl AtOnce {
    /// Returns the limit for this many nodes. A percentage is rounded down, and is at least one node.
    pub fn of(self, nodes: usize) -> usize {
        match self {
            Self::Nodes(number) => number,
            Self::Percent(percent) => (nodes * usize::from(percent) / 100).max(1),
        }
    }
}

impl FromStr for AtOnce {
    type Err = AtOnceError;

    fn from_str(text: &str) -> Result<Self, AtOnceError> {
        let wrong = || AtOnceError { text: text.to_owned() };
        let read = match text.strip_suffix('%') {
            Some(share) => share.parse().ok().filter(|share| (1..=100).contains(share)).map(Self::Percent),
            None => text.parse().ok().filter(|number| *number > 0).map(Self::Nodes),
        };
        read.ok_or_else(wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_shares() {
        assert_eq!("3".parse::<AtOnce>().unwrap().of(50), 3);
        assert_eq!("10%".parse::<AtOnce>().unwrap().of(50), 5);
        assert_eq!("10%".parse::<AtOnce>().unwrap().of(3), 1, "never nothing");
        for wrong in ["", "0", "-1", "0%", "101%", "%", "three"] {
            assert!(wrong.parse::<AtOnce>().is_err(), "{wrong}");
        }
    }
}
