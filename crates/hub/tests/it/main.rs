//! A hub that listens, as nodes, operators and attackers meet it.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod access;
mod api;
mod bed;
mod hostile;
mod page;
mod progress;
mod store;
