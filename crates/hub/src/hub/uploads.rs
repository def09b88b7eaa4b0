//! Limits on concurrent bundle uploads.
//!
//! Each upload is on the disk until it is complete.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::access::Caller;
use crate::name::NodeName;
use crate::problem::Problem;

/// Maximum number of concurrent uploads.
const MAX_UPLOADS: usize = 64;
/// Maximum per node: the current upload, and one whose broken connection is not detected yet.
const MAX_OF_NODE: usize = 2;
/// Maximum per credential. A node's own credential is limited to [`MAX_OF_NODE`]; a credential for many nodes leaves
/// slots to others.
const MAX_BY_ONE: usize = MAX_UPLOADS / 2;

#[derive(Debug, Default)]
pub(super) struct Uploads(Mutex<HashMap<(Caller, NodeName), usize>>);

/// A slot for an upload.
#[derive(Debug)]
pub(super) struct Upload<'u> {
    uploads: &'u Uploads,
    of: (Caller, NodeName),
}

// === impl Uploads ===

impl Uploads {
    /// Acquires a slot for a bundle of this node, sent with this credential.
    pub(super) fn place(&self, by: &Caller, node: &NodeName) -> Result<Upload<'_>, Problem> {
        let mut sending = self.lock();
        let (mut all, mut by_them, mut of_node) = (0, 0, 0);
        for ((caller, name), count) in sending.iter() {
            all += count;
            by_them += if caller == by { *count } else { 0 };
            of_node += if name == node { *count } else { 0 };
        }
        if all >= MAX_UPLOADS || by_them >= MAX_BY_ONE || of_node >= MAX_OF_NODE {
            return Err(Problem::new(503, "Try again later", "too many bundles are being sent"));
        }
        let of = (by.clone(), node.clone());
        *sending.entry(of.clone()).or_default() += 1;
        Ok(Upload { uploads: self, of })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(Caller, NodeName), usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Upload<'_> {
    fn drop(&mut self) {
        let mut sending = self.uploads.lock();
        if let Some(count) = sending.get_mut(&self.of) {
            *count -= 1;
            if *count == 0 {
                sending.remove(&self.of);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(number: usize) -> NodeName {
        NodeName::new(format!("n{number}")).unwrap()
    }

    #[test]
    fn there_is_an_end_to_it_for_one_and_for_all() {
        let uploads = Uploads::default();
        let place = |number| uploads.place(&Caller::Node(name(number)), &name(number));
        let first: Vec<_> = (0..MAX_OF_NODE).map(|_| place(0).unwrap()).collect();
        assert!(place(0).unwrap_err().retry);
        let by_another = uploads.place(&Caller::Operator("ann".to_owned()), &name(0));
        assert!(by_another.is_err(), "however it is sent");
        let others: Vec<_> = (1..=MAX_UPLOADS - MAX_OF_NODE).map(|number| place(number).unwrap()).collect();
        assert!(place(MAX_UPLOADS).is_err());
        drop(first);
        place(0).unwrap();
        drop(others);
        assert!(uploads.lock().is_empty());
    }

    #[test]
    fn a_token_for_many_nodes_leaves_places_to_the_others() {
        let uploads = Uploads::default();
        let token = |token: u8| Caller::Nodes { prefix: String::new(), token: [token; 32] };
        let by = |caller: &Caller| {
            (0..2 * MAX_UPLOADS)
                .filter_map(|number| uploads.place(caller, &name(number)).ok())
                .collect::<Vec<_>>()
        };
        let taken = by(&token(1));
        assert_eq!(taken.len(), MAX_BY_ONE);
        let of_their_own = uploads.place(&Caller::Node(name(500)), &name(500)).unwrap();
        assert_eq!(by(&token(2)).len(), MAX_UPLOADS - MAX_BY_ONE - 1);
        drop((taken, of_their_own));
        assert!(uploads.lock().is_empty());
    }
}
