//! The data types of Landfall that its components exchange with each other and with users.
//!
//! Types here have no behavior beyond their own invariants. Every type that is written to disk or sent to a user has a
//! versioned format: [`report`] for `--output json`, [`envelope`] for carriers, [`bundle`] for `manifest.json`, and
//! [`step`] for the ledger of node work.

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
