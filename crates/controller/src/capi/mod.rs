//! `landfall controller --capi`: publishes the nodes' verdicts as one condition of each Machine.
//!
//! ```text
//!  Machines, Clusters ──┐            pure                        one write each
//!  BootstrapReports ────┼─▶ World ──────────▶ plan ──▶ [Action] ──────────────▶ Machine's condition, its hook
//!  the hub's fleet ─────┘   pair                                                and an Event per transition
//! ```
//!
//! The controller keeps no state except caches that reduce queries; another replica observes the same world
//! and decides the same. It writes only this condition into a Machine's status. Its only annotation is a hook
//! that delays the deletion of a failed Machine, for a limited time, until its evidence is in the hub. The
//! condition has fixed wording: the catalog's title, the cause's name, and the location of the evidence,
//! never a log line.

pub mod act;
pub mod board;
pub mod condition;
pub mod heard;
pub mod machine;
pub mod manifests;
pub mod metrics;
pub mod observe;
pub mod pair;
pub mod plan;
pub mod report;
pub mod run;
pub mod shape;

#[cfg(test)]
mod simulation;
