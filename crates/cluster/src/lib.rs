//! The only door to Kubernetes: every question a role asks an API server is a method of [`Cluster`], with a deadline
//! and an error that says what was asked. The client library stays behind this door.

mod access;
mod client;
mod config_map;
mod credentials;
mod error;
mod lease;
mod node;
mod notes;
mod secret;
mod servers;
mod version;

pub use access::{Access, TokenReview, User};
pub use client::Cluster;
pub use credentials::{Credentials, Identity};
pub use error::Error;
pub use lease::{LeaseQuery, Leases, OwnLease, SeenLease};
pub use node::NodeFacts;
pub use notes::NodeNotes;
pub use secret::SecretData;
pub use servers::ServerProbe;
pub use version::ServerVersion;
