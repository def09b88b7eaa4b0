//! Tokens that many nodes share: machines of one image or one autoscaling group have the same user data, and nobody knows
//! their names beforehand.
//!
//! The token only opens the door. Which node somebody is, their key tells: the first key a name shows is the node's from
//! then on, so that a token that leaked speaks for no node that is known, and makes others known no faster than
//! [`NEW_NODES_A_MINUTE`](crate::store::NEW_NODES_A_MINUTE).

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

/// The header that proves whose a bundle is.
pub(crate) const SIGNATURE: &str = "landfall-signature";
/// What is signed begins with this, so that no signature of a bundle passes for one of something else.
const BUNDLE: &str = "landfall-bundle-v1";
/// Tokens remembered before those that rest are let go.
const MANY_TOKENS: usize = 64;

/// A way by which others bring reports: each has an allowance of its own, as if it were a token.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Way {
    Neighbours,
    Bucket,
    Stream,
    /// Somebody who may speak for every node passes on what others said.
    PassedOn,
}

/// What every token that many nodes share may still make known.
#[derive(Debug, Default)]
pub(crate) struct Enrolments(Mutex<HashMap<[u8; 32], Arc<Allowance>>>);

/// What the key of a node signs for a bundle.
fn message(node: &NodeName, digest: &str) -> String {
    format!("{BUNDLE}\n{node}\n{digest}")
}

// === impl Enrolments ===

impl Enrolments {
    fn of(&self, token: [u8; 32]) -> Arc<Allowance> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MANY_TOKENS {
            // One that nothing is missing from is as good as a new one.
            let now = Instant::now();
            all.retain(|_, allowance| !allowance.is_full(now));
        }
        Arc::clone(all.entry(token).or_default())
    }
}

// === impl Hub ===

impl Hub {
    /// How a report counts that others bring, such as an agent for its neighbours or a bucket: whoever controls them could have
    /// written it.
    pub(crate) fn standing_of_others(&self, way: Way) -> Standing {
        // No fingerprint of a token is one byte over and over.
        Standing::ByKey(self.enrolments.of([way as u8; 32]))
    }

    /// How a report counts that the caller passes on. A credential that is good for every node tells nothing of this one.
    pub(crate) fn standing_of_passed_on(&self, caller: &Caller, node: &NodeName) -> Result<Standing, Denied> {
        let standing = self.standing(caller, node)?;
        Ok(match caller {
            Caller::Anyone | Caller::Operator(_) => self.standing_of_others(Way::PassedOn),
            Caller::Node(_) | Caller::Nodes { .. } | Caller::Viewer(_) => standing,
        })
    }

    /// How the caller may report as this node.
    pub(crate) fn standing(&self, caller: &Caller, node: &NodeName) -> Result<Standing, Denied> {
        match caller {
            Caller::Nodes { token, .. } => {
                caller.may(Wish::Enrol(node))?;
                Ok(Standing::ByKey(self.enrolments.of(*token)))
            }
            _ => caller.may(Wish::Report(node)).map(|()| Standing::Trusted),
        }
    }

    /// Who sends this bundle: a holder of a token that many nodes share is the node only if its key signed the bundle. Where the
    /// node has a token of its own, a signature by another key is that of a machine whose reports are not taken either.
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
