//! The node agent: it follows a machine's bootstrap from the first boot on, keeps what it makes of it on the disk, and
//! brings it to those who ask.
//!
//! ```text
//! journal, logs ─┐                                   ┌─► state folder: last report, with the boot it is about
//! units, files ──┼─► Watch ──► Case ──► Report ──► Keeper
//! kernel ────────┘   new lines only                  └─► a spool per carrier ──► Carrier ──► hub, bucket, …
//! ```
//!
//! - **Incremental.** Every line is read and matched once. The engine holds of each kind of line the first and the last,
//!   so memory does not grow with the logs.
//! - **Nothing acknowledged is lost.** A report is on the disk before anybody hears of it (unless the disk is full: then it
//!   goes out from memory), and stays in a carrier's spool
//!   until the other side has said that it has it. The other side knows a report by its id, so sending twice is harmless.
//! - **Silence is told.** Until the node is up, everything is thought over again though nothing was said, and the last report
//!   is told again on every beat: a machine that works slowly is not taken for a dead one, and one that hangs is found out.
//! - **Never in the way.** Nothing waits for the agent; whatever fails is logged and tried again later.

pub mod carrier;

mod agent;
#[cfg(test)]
mod full_disk_tests;
mod keeper;
mod metrics;
mod milestones;
mod neighbours;
mod processes;
mod serve;
mod spool;
mod tail;
mod units;
mod watch;
#[cfg(test)]
mod watch_tests;

pub use agent::{Agent, AgentError, Config};
pub use keeper::{KeepError, Keeper, REPORT, Unwritten};
pub use landfall_wire::{Pair, every_address};
pub use metrics::page_at_start as metrics_at_start;
pub use serve::Serve;
pub use spool::{Spool, SpoolError};
pub use watch::Watch;
