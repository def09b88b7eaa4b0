//! The servers to which an agent is connected, and the search for more.
//!
//! All servers share one address. The agent connects until it has reached as many different servers as there are. It
//! closes connections to servers that it knows already.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::leases::CountSource;
use super::status::Metrics;
use crate::mux::{Command, Queue};

#[derive(Debug, Default)]
pub(super) struct Servers {
    pub(super) agent_id: String,
    known: Mutex<Known>,
    pub(super) metrics: Arc<Metrics>,
}

#[derive(Debug, Default)]
struct Known {
    servers: HashMap<String, Arc<Queue>>,
    /// The number that the last server reported.
    told: usize,
    /// The number of leases, where they are counted.
    leases: Option<usize>,
    source: CountSource,
}

// === impl Servers ===

impl Servers {
    pub(super) fn new(agent_id: &str) -> Self {
        Self { agent_id: agent_id.to_owned(), ..Self::default() }
    }

    pub(super) fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.lock().servers.keys().cloned().collect();
        names.sort_unstable();
        names
    }

    /// Adds a server, unless it is known.
    pub(super) fn add(&self, id: &str, count: usize, queue: &Arc<Queue>) -> bool {
        let mut known = self.lock();
        known.told = count;
        if known.servers.contains_key(id) {
            return false;
        }
        known.servers.insert(id.to_owned(), Arc::clone(queue));
        true
    }

    /// Removes this link to a server, but not another link to the same server.
    pub(super) fn remove(&self, id: &str, link: &Arc<Queue>) {
        let mut known = self.lock();
        if known.servers.get(id).is_some_and(|queue| Arc::ptr_eq(queue, link)) {
            known.servers.remove(id);
        }
    }

    pub(super) fn connected(&self) -> usize {
        self.lock().servers.len()
    }

    pub(super) fn expected(&self) -> usize {
        self.lock().expected()
    }

    /// Selects the source of the server count. Until the first count of leases, the servers' number applies.
    pub(super) fn count_by(&self, source: CountSource) {
        self.lock().source = source;
    }

    /// Returns whether the count changed.
    pub(super) fn set_leases(&self, live: usize) -> bool {
        self.lock().leases.replace(live) != Some(live)
    }

    pub(super) fn is_complete(&self) -> bool {
        let known = self.lock();
        known.servers.len() >= known.expected()
    }

    pub(super) fn tell_all(&self, command: impl Fn() -> Command) {
        let queues: Vec<Arc<Queue>> = self.lock().servers.values().cloned().collect();
        for queue in queues {
            queue.command(command());
        }
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Known ===

impl Known {
    fn expected(&self) -> usize {
        let expected = match (self.leases, self.source) {
            (None, _) => self.told,
            (Some(leases), CountSource::Default) => leases,
            (Some(leases), CountSource::Max) => leases.max(self.told),
        };
        // Without leases, and without a number from servers, there is at least the server being called.
        expected.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_server_is_not_added_twice() {
        let (servers, queue) = (Servers::default(), Arc::new(Queue::default()));
        assert!(!servers.is_complete());
        assert!(servers.add("a", 2, &queue));
        assert!(!servers.add("a", 2, &queue));
        assert!(!servers.is_complete());
        assert!(servers.add("b", 2, &queue));
        assert!(servers.is_complete());
        // Every response updates the count, also one of a known server.
        assert!(!servers.add("a", 3, &queue));
        assert!(!servers.is_complete());
        assert_eq!((servers.connected(), servers.expected()), (2, 3));
    }

    #[test]
    fn leases_are_counted_instead_or_beside() {
        let (servers, queue) = (Servers::default(), Arc::new(Queue::default()));
        servers.add("a", 3, &queue);
        assert_eq!(servers.expected(), 3);
        assert!(servers.set_leases(2));
        assert!(!servers.set_leases(2));
        assert_eq!(servers.expected(), 2);
        servers.count_by(CountSource::Max);
        assert_eq!(servers.expected(), 3);
        servers.count_by(CountSource::Default);
        servers.set_leases(0);
        assert_eq!(servers.expected(), 1);
    }
}
