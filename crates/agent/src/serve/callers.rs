//! Classification and slots of the port's callers.
//!
//! Callers without read permission cannot exhaust the reader slots.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use x509_parser::prelude::{FromDer as _, X509Certificate};

/// Groups with read permission: those of the hub, and the cluster's own administrators.
pub(super) const READERS: [&str; 3] = ["landfall:operators", "landfall:viewers", "system:masters"];
/// Group of the nodes, each of which may deliver its own report here.
const NODES: &str = "system:nodes";
const NODE_PREFIX: &str = "system:node:";
/// Concurrent readers. Readers of a node's report are single users or a hub.
const READER_PLACES: usize = 16;
/// Concurrent nodes that deliver a report. Each report may take 1 MiB of memory, and several times that while
/// it is parsed.
const NODE_PLACES: usize = 4;
/// One slot, and a spare for a node whose first connection broke silently.
const PLACES_OF_ONE_NODE: usize = 2;

/// A caller by its client certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Caller {
    Reader,
    Node(String),
    Stranger,
}

/// The callers that hold a slot.
#[derive(Debug, Default)]
pub(super) struct Places(Mutex<Vec<Caller>>);

/// A caller's slot, released on drop.
#[derive(Debug)]
pub(super) struct Place {
    places: Arc<Places>,
    caller: Caller,
}

// === impl Caller ===

impl Caller {
    /// Classifies the caller by the certificate's subject. The TLS handshake has verified the certificate.
    pub(super) fn of(certificate: &[u8]) -> Self {
        let Ok((_, certificate)) = X509Certificate::from_der(certificate) else { return Self::Stranger };
        let subject = certificate.subject();
        let groups: Vec<&str> = subject.iter_organization().filter_map(|group| group.as_str().ok()).collect();
        let name = subject.iter_common_name().next().and_then(|name| name.as_str().ok()).unwrap_or_default();
        match name.strip_prefix(NODE_PREFIX) {
            _ if groups.iter().any(|group| READERS.contains(group)) => Self::Reader,
            Some(node) if groups.contains(&NODES) => Self::Node(node.to_owned()),
            _ => Self::Stranger,
        }
    }
}

// === impl Places ===

impl Places {
    /// Takes a slot. Readers and nodes have separate slots; unauthorized callers have none.
    pub(super) fn take(self: &Arc<Self>, caller: &Caller) -> Option<Place> {
        let mut taken = self.taken();
        let count = |alike: &dyn Fn(&Caller) -> bool| taken.iter().filter(|other| alike(other)).count();
        let free = match caller {
            Caller::Reader => count(&|other| other == caller) < READER_PLACES,
            Caller::Node(_) => {
                count(&|other| matches!(other, Caller::Node(_))) < NODE_PLACES
                    && count(&|other| other == caller) < PLACES_OF_ONE_NODE
            }
            Caller::Stranger => false,
        };
        if !free {
            return None;
        }
        taken.push(caller.clone());
        Some(Place { places: Arc::clone(self), caller: caller.clone() })
    }

    fn taken(&self) -> MutexGuard<'_, Vec<Caller>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Place ===

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken();
        if let Some(at) = taken.iter().position(|other| *other == self.caller) {
            taken.swap_remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_places_of_its_own_and_one_node_not_all_of_them() {
        let places = Arc::new(Places::default());
        let take = |caller: &Caller, times: usize| -> Vec<Place> {
            (0..times).filter_map(|_| places.take(caller)).collect()
        };
        let node = |name: &str| Caller::Node(name.to_owned());
        assert!(take(&Caller::Stranger, 1).is_empty());
        let first = take(&node("n1"), 9);
        assert_eq!(first.len(), PLACES_OF_ONE_NODE);
        let second = take(&node("n2"), 9);
        assert_eq!(first.len() + second.len(), NODE_PLACES);
        assert!(take(&node("n3"), 1).is_empty());
        let readers = take(&Caller::Reader, 99);
        assert_eq!(readers.len(), READER_PLACES);
        drop(first);
        assert_eq!(take(&node("n3"), 1).len(), 1);
        drop((second, readers));
        assert!(places.taken().is_empty());
    }
}
