//! The nouns of Landfall: what rooms of the house say to each other and to users.
//!
//! Types here carry no behaviour beyond their own invariants. Every type that is written to disk or sent to a user
//! has a versioned format; [`report`] is the promise behind `--output json`, [`envelope`] the one
//! behind what carriers carry, [`bundle`] the one behind `manifest.json`, [`step`] the one behind the ledger of node work.

mod cause;
mod chain;
mod confidence;
mod phase;
mod secret;

pub mod bundle;
pub mod envelope;
pub mod identity;
pub mod in_place;
pub mod report;
pub mod step;
pub mod terminal;

pub use cause::{Cause, InvalidCause};
pub use chain::{Chain, chain};
pub use confidence::Confidence;
pub use phase::Phase;
pub use secret::Secret;
