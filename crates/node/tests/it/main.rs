//! Integration tests of both kinds of work on a node, in one binary.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod bus;
mod corpus;
mod sysext;
mod update_engine;
mod vectors;
