//! The node agent, `landfall agent`.
//!
//! It follows a machine's bootstrap from the first boot, stores its reports on disk, and delivers them to the
//! configured receivers.
//!
//! ```text
//! journal, logs ─┐                                   ┌─► state directory: last report, with the boot it is about
//! units, files ──┼─► Watch ──► Case ──► Report ──► Keeper
//! kernel ────────┘   new lines only                  └─► a spool per carrier ──► Carrier ──► hub, bucket, …
//! ```
//!
//! - **Incremental.** Every line is read and matched once. The engine keeps the first and last line of each
//!   kind, so memory does not grow with the logs.
//! - **No acknowledged report is lost.** A report is on disk before it is delivered. If the disk is full, it
//!   is delivered from memory. It stays in a carrier's spool until the receiver has acknowledged it. The
//!   receiver recognizes a report by its ID, so a redelivery is harmless.
//! - **Silence is evaluated.** Until the node is ready, the agent evaluates again even without new lines, and
//!   each heartbeat delivers the last report again. A slow machine is thus not treated as dead, and a hung
//!   one is detected.
//! - **Never blocking.** No component waits for the agent; failures are logged and retried.

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
pub use keeper::{KeepError, Keeper, REPORT, SignedReport, Unwritten};
pub use landfall_net::{CertificateFiles, every_address};
pub use metrics::page_at_start as metrics_at_start;
pub use serve::Serve;
pub use spool::{Spool, SpoolError};
pub use watch::Watch;
