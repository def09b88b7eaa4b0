//! `landfall controller --capi`: what nodes say of their bootstrap becomes one condition of their Machine.
//!
//! ```text
//!  Machines, Clusters ──┐            pure                        one write each
//!  BootstrapReports ────┼─▶ World ──────────▶ plan ──▶ [Action] ──────────────▶ Machine's condition, its hook
//!  the hub's fleet ─────┘   pair                                                and an Event per transition
//! ```
//!
//! Nothing is remembered but what makes asking cheaper: whoever looks next finds the same world and decides the same. The
//! condition is the only thing written into a Machine's status; the only annotation is a hook that holds back the end of a
//! failed Machine until its evidence is in the hub, for a limited time. What nodes say is told in our own words: the
//! catalogue's title, the cause's name, and where the evidence is, never a line of a log.

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
