//! `landfall controller`: leads a fleet of nodes through in-place bootstraps.
//!
//! ```text
//!            every look                    pure                     one write each
//!  cluster ────────────▶ World ──▶ plan(policy, world) ──▶ [Action] ────────────▶ cluster
//!
//!  label ▶ Waiting ▶ Cordoning ▶ Draining ▶ HandedOver ▶ Running ▶ Restoring ▶ Done
//!            queue      ours?     evictions   Secret, pod   told by   labels,     uncordoned,
//!                                 in budgets  on the node   the node  taints      if by us
//! ```
//!
//! [`plan()`](plan::plan) knows nothing but what it is shown, and what it decides is one write after another, each of
//! which may be the last before a crash: whoever looks next finds the same world and goes on. What must outlive the node
//! is in its `NodeBootstrap` ([`record`]); what concerns the cordon is on the node, written in the same breath.
//! Beside it, [`capi`] shows on Machines of Cluster API what their nodes say of their bootstrap, in the same way.
//! [`observe`] and [`act`] are the edge, [`run()`](run::run) the loop between them.

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

#[cfg(test)]
mod simulation;
