//! The only client of Kubernetes.
//!
//! Every API request of a role is a method of [`Cluster`], with a timeout and an error that names the
//! request. No other crate uses the client library.

mod access;
mod client;
mod config_map;
mod credentials;
mod election;
mod error;
mod event;
mod fleet;
mod forward;
mod lease;
pub mod manifest;
mod node;
mod objects;
mod placed;
mod pods;
mod secret;
mod servers;
mod signing;
mod version;

pub use access::{Access, TokenReview, User};
pub use client::Cluster;
pub use credentials::{Credentials, Identity};
pub use election::{Election, Standing};
pub use error::Error;
pub use event::{Event, Subject};
pub use fleet::{Condition, Fleet, FleetNode, NodeChange};
pub use forward::{Forward, PodPlace};
pub use lease::{LeaseQuery, Leases, OwnLease, SeenLease};
pub use node::NodeFacts;
pub use objects::{Kind, Part};
pub use placed::Place;
pub use pods::{Eviction, PodFacts};
pub use secret::{SecretData, SecretFacts};
pub use servers::ServerProbe;
pub use signing::SigningRequest;
pub use version::ServerVersion;
