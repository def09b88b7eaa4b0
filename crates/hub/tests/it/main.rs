//! Tests of a listening hub from the perspective of nodes, operators and attackers.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod access;
mod api;
mod bed;
mod connections;
mod enrol;
mod hostile;
mod page;
mod progress;
mod pull;

mod replicas;
mod store;
mod take;

/// The same tests on PostgreSQL; the fixture selects the store by the name of the test.
#[expect(clippy::duplicate_mod, reason = "what a hub promises does not depend on its store")]
#[path = "."]
mod on_postgres {
    mod access;
    mod api;
    mod connections;
    mod enrol;
    mod hostile;
    mod pull;

    /// The page tests that depend on the store.
    mod page {
        pub(crate) use crate::page::{HOSTILE, nothing_ran, picture, url, with_bundle, wrecked};

        mod board;
        mod logs;
        mod node;
    }
    mod take;
}
