//! The gateway from the view of its clients, in front of real API servers and without any.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod attacks;
mod balancer;
mod bed;
mod client;
mod handover;
mod kubectl;
mod no_api;
mod redirect;
mod rotation;
mod splice;
mod stand_in;
mod traffic;
mod truth;
mod tunnel;
