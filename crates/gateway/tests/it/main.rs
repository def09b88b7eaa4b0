//! The gateway as its clients see it, before real API servers and without any.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bed;
mod client;
mod no_api;
mod truth;
