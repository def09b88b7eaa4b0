//! `node in-place`: re-bootstraps a machine without reprovisioning it, across reboots and power failures, and never
//! twice.
//!
//! ```text
//! Secret + label ─▶ claim ─▶ preflight ─▶ stage ─▶ install ─▶ take-label-off ─▶ go-down ═ reboot ═▶ set-state-aside ─┐
//!                    read-only, and what it downloads is kept      │ a gate before the kubelet          kubelet down  │
//!                                                                                                                     │
//!  RHCOS  apply-machine-config (machine-config-daemon) ═ reboot ═▶ verify ─▶ clear-up   ◀─────────────────────────────┤
//!  RHEL   run-base (scripts) ═ reboot ═▶ run-kube (scripts) ─▶ verify ─▶ clear-up       ◀─────────────────────────────┘
//! ```
//!
//! Nothing is stopped before everything is staged. The kubelet goes down with the machine, and the gate keeps it down
//! in the next boot, so opening the gate rolls everything back. Decisions ([`credentials`], [`ignition`],
//! [`machine_config`], [`oci`], [`payload`], [`story`], [`gate`]) are free of I/O; [`environment`] performs the I/O.

mod archive;
pub mod credentials;
pub mod environment;
pub mod flavour;
pub mod gate;
pub mod ignition;
pub mod machine_config;
pub mod mirrors;
pub mod oci;
pub mod payload;
pub mod places;
pub mod preflight;
pub mod progress;
pub mod request;
pub mod run;
pub mod source;
pub mod steps;
pub mod story;
pub mod units;

pub use archive::ArchiveError;

#[cfg(test)]
mod crash_tests;
