//! `landfall controller`: leads a fleet of nodes through in-place bootstraps.
//!
//! ```text
//!            every pass                    pure                     one write each
//!  cluster ────────────▶ World ──▶ plan(policy, world) ──▶ [Action] ────────────▶ cluster
//!
//!  label ▶ Waiting ▶ Cordoning ▶ Draining ▶ HandedOver ▶ Running ▶ Restoring ▶ Done
//!            queue      own        evictions   Secret, pod   reported  labels,     uncordoned,
//!                       cordon     in budgets  on the node   by node   taints      if ours
//! ```
//!
//! [`plan()`](plan::plan) depends on its arguments only and returns single writes, each of which may be the
//! last before a crash. The next pass, of this replica or another one, observes the same world and continues.
//! State that must outlive the Node object is in its `NodeBootstrap` ([`record`]). State about the cordon is
//! on the Node, in the same write as the cordon. In the same way, [`capi`] publishes the nodes' verdicts on
//! Cluster API Machines. [`observe`] and [`act`] do the I/O, and [`run()`](run::run) is the loop between them.

pub mod act;
pub mod capi;
pub mod certificates;
mod leading;
pub mod manifests;
pub mod metrics;
pub mod observe;
pub mod plan;
pub mod policy;
pub mod record;
pub mod run;
pub mod template;
pub mod window;
pub mod world;

pub use landfall_net::Listener;

#[cfg(test)]
mod simulation;
