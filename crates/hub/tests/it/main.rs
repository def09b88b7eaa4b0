//! A hub that listens, as nodes, operators and attackers meet it.
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

/// The same tests once more, on the store for many hubs: the bed tells by a test's name where it runs.
#[expect(clippy::duplicate_mod, reason = "what a hub promises does not depend on its store")]
#[path = "."]
mod on_postgres {
    mod access;
    mod api;
    mod connections;
    mod enrol;
    mod hostile;
    mod pull;

    /// What of the pages depends on the store.
    mod page {
        pub(crate) use crate::page::{HOSTILE, nothing_ran, picture, url, with_bundle, wrecked};

        mod board;
        mod logs;
        mod node;
    }
    mod take;
}
