//! Who is sending a bundle. Each lies on the disk until it is whole.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::name::NodeName;
use crate::problem::Problem;

/// Bundles that are sent at once.
const MAX_UPLOADS: usize = 64;
/// Of one node: the present one, and the one whose connection broke without anybody noticing.
const MAX_OF_NODE: usize = 2;

#[derive(Debug, Default)]
pub(super) struct Uploads(Mutex<HashMap<NodeName, usize>>);

/// A bundle that is being sent.
#[derive(Debug)]
pub(super) struct Upload<'u> {
    uploads: &'u Uploads,
    node: NodeName,
}

// === impl Uploads ===

impl Uploads {
    pub(super) fn place(&self, node: &NodeName) -> Result<Upload<'_>, Problem> {
        let mut sending = self.lock();
        let of_node = sending.get(node).copied().unwrap_or(0);
        if of_node >= MAX_OF_NODE || sending.values().sum::<usize>() >= MAX_UPLOADS {
            return Err(Problem::new(503, "Try again later", "too many bundles are being sent"));
        }
        sending.insert(node.clone(), of_node + 1);
        Ok(Upload { uploads: self, node: node.clone() })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<NodeName, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Upload<'_> {
    fn drop(&mut self) {
        let mut sending = self.uploads.lock();
        if let Some(count) = sending.get_mut(&self.node) {
            *count -= 1;
            if *count == 0 {
                sending.remove(&self.node);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_an_end_to_it_for_one_and_for_all() {
        let uploads = Uploads::default();
        let name = |number: usize| NodeName::new(format!("n{number}")).unwrap();
        let first: Vec<_> = (0..MAX_OF_NODE).map(|_| uploads.place(&name(0)).unwrap()).collect();
        assert!(uploads.place(&name(0)).unwrap_err().retry);
        let others: Vec<_> =
            (1..=MAX_UPLOADS - MAX_OF_NODE).map(|number| uploads.place(&name(number)).unwrap()).collect();
        assert!(uploads.place(&name(MAX_UPLOADS)).is_err());
        drop(first);
        uploads.place(&name(0)).unwrap();
        drop(others);
        assert!(uploads.lock().is_empty());
    }
}
