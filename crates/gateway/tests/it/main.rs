//! The gateway as its clients see it, before real API servers and without any.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod balancer;
mod bed;
mod client;
mod handover;
mod kubectl;
mod network;
mod no_api;
mod redirect;
mod splice;
mod truth;
mod tunnel;
