//! What the operator allows: how many at once, when, and how patiently.

use std::str::FromStr;
use std::time::Duration;

use crate::window::Window;

/// The rules of a wave.
#[derive(Clone, Debug)]
pub struct Policy {
    /// How many nodes may be away at once, those that are away for other reasons included.
    pub max_unavailable: AtOnce,
    /// Between the end of one node and the beginning of the next.
    pub pause: Duration,
    /// When a node may be begun; always, if there is none.
    pub windows: Vec<Window>,
    /// How many nodes may have failed before no other is begun.
    pub max_failed: usize,
    pub drain: Drain,
    /// From the pod on the node to its first word.
    pub claim_within: Duration,
    /// From the pod on the node to the node's return.
    pub return_within: Duration,
    pub secrets: Secrets,
    pub approvals: Approvals,
}

/// How a node is emptied.
#[derive(Clone, Debug)]
pub struct Drain {
    /// For all its pods together.
    pub within: Duration,
    /// For one pod, instead of its own.
    pub grace: Option<Duration>,
    /// Pods that nothing makes again elsewhere.
    pub unmanaged: Unasked,
    /// Pods with data that goes with them (`emptyDir`).
    pub local_data: Unasked,
}

/// What to do with pods whose loss was not agreed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unasked {
    Evict,
    /// They hold the drain up until a person takes them away.
    Leave,
}

/// Where a node's Secret comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Secrets {
    /// A person puts it there; before that the node is not touched.
    Given,
    /// Made from a template when the node's turn comes, unless a person put one there.
    Template,
}

/// Whether certificates of nodes are approved here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Approvals {
    Never,
    /// For nodes that are being made anew by us, when everything about the request is that node's.
    Proven {
        /// Who may ask for a node's first certificate, beside members of `system:bootstrappers`.
        bootstrap_users: Vec<String>,
    },
}

/// A number of nodes, or a share of all.
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
    /// Of this many nodes; a share is rounded down, and is never nothing.
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
