//! Tokens shared by many nodes.
//!
//! Machines of one image or one autoscaling group have the same user data, and their names are not known in advance.
//! The token only authorizes enrollment; a node is identified by its key.
//!
//! The first key used for a name is pinned. A leaked token therefore cannot report for a known node, and enrolls at
//! most [`NEW_NODES_A_MINUTE`](crate::store::NEW_NODES_A_MINUTE) new ones per minute.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

use crate::access::{Caller, Denied, Wish};
use crate::hub::Hub;
use crate::name::NodeName;
use crate::problem::Problem;
use crate::store::{Allowance, Pinned, Refusal, Standing};

/// Header with the signature that proves the node of a bundle.
pub(crate) const SIGNATURE: &str = "landfall-signature";
/// Prefix of the signed message, so that the signature of a bundle is not valid for any other purpose.
const BUNDLE: &str = "landfall-bundle-v1";
/// Number of remembered tokens above which idle ones are dropped.
const MANY_TOKENS: usize = 64;

/// A source of reports without its own credential. Each has its own enrollment quota, like a token.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Way {
    Neighbours,
    Bucket,
    Stream,
    /// A caller that may report for every node forwards reports of others.
    PassedOn,
}

/// Remaining enrollment quota of each shared token.
#[derive(Debug, Default)]
pub(crate) struct Enrolments(Mutex<HashMap<[u8; 32], Arc<Allowance>>>);

/// Returns the message that a node's key signs for a bundle.
fn message(node: &NodeName, digest: &str) -> String {
    format!("{BUNDLE}\n{node}\n{digest}")
}

// === impl Enrolments ===

impl Enrolments {
    fn of(&self, token: [u8; 32]) -> Arc<Allowance> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MANY_TOKENS {
            // An unused quota equals a new one.
            let now = Instant::now();
            all.retain(|_, allowance| !allowance.is_full(now));
        }
        Arc::clone(all.entry(token).or_default())
    }
}

// === impl Hub ===

impl Hub {
    /// Returns the sender trust of reports that another party delivers. An agent that stores reports of its
    /// neighbors, or a writer of a bucket, could have written the report.
    pub(crate) fn standing_of_others(&self, way: Way) -> Standing {
        // The fingerprint of a token never consists of one repeated byte.
        Standing::ByKey(self.enrolments.of([way as u8; 32]))
    }

    /// Returns the sender trust of a report that the caller forwards. A credential that is valid for every node
    /// proves no particular node.
    pub(crate) fn standing_of_passed_on(&self, caller: &Caller, node: &NodeName) -> Result<Standing, Denied> {
        let standing = self.standing(caller, node)?;
        Ok(match caller {
            Caller::Anyone | Caller::Operator(_) => self.standing_of_others(Way::PassedOn),
            Caller::Node(_) | Caller::Nodes { .. } | Caller::Viewer(_) => standing,
        })
    }

    /// Returns the sender trust of the caller's reports for this node.
    pub(crate) fn standing(&self, caller: &Caller, node: &NodeName) -> Result<Standing, Denied> {
        match caller {
            Caller::Nodes { token, .. } => {
                caller.may(Wish::Enrol(node))?;
                Ok(Standing::ByKey(self.enrolments.of(*token)))
            }
            _ => caller.may(Wish::Report(node)).map(|()| Standing::Trusted),
        }
    }

    /// Returns the sender of a bundle. A holder of a shared token counts as the node only if the node's key signed
    /// the bundle. With a token of the node's own, a signature by another key is rejected as well: reports with that
    /// key would be rejected too.
    pub(crate) async fn sender_of_bundle(
        &self,
        caller: &Caller,
        node: &NodeName,
        digest: &str,
        signature: Option<&str>,
    ) -> Result<Caller, Problem> {
        let is_shared = match caller {
            Caller::Nodes { .. } => true,
            Caller::Node(_) if signature.is_some() => false,
            _ => return Ok(caller.clone()),
        };
        caller.may(if is_shared { Wish::Enrol(node) } else { Wish::Report(node) })?;
        let signature = signature.and_then(|signature| BASE64.decode(signature.trim()).ok());
        let Pinned::Key(key) = self.store.pinned(node.clone()).await? else {
            return if is_shared { Err(Denied::Unproven.into()) } else { Ok(caller.clone()) };
        };
        let holds = |signature: Vec<u8>| {
            landfall_pki::verify_signature(&key, message(node, digest).as_bytes(), &signature)
        };
        if signature.is_some_and(holds) {
            Ok(Caller::Node(node.clone()))
        } else if is_shared {
            Err(Denied::Unproven.into())
        } else {
            Err(Refusal::WrongKey.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_that_rest_are_let_go() {
        let enrolments = Enrolments::default();
        for number in 0..=255 {
            enrolments.of([number; 32]);
        }
        let kept = enrolments.0.lock().unwrap().len();
        assert!(kept <= MANY_TOKENS, "{kept}");
        let one = enrolments.of([255; 32]);
        assert!(Arc::ptr_eq(&one, &enrolments.of([255; 32])));
    }
}
