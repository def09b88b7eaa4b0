//! The only door to Kubernetes: every question a role asks an API server is a method of [`Cluster`], with a deadline
//! and an error that says what was asked. The client library stays behind this door.

mod access;
mod client;
mod config_map;
mod credentials;
mod election;
mod error;
mod event;
mod fleet;
mod forward;
mod kubeconfig;
mod lease;
mod narrow;
mod node;
mod notes;
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
pub use event::{NodeEvent, ObjectEvent};
pub use fleet::{Condition, Fleet, FleetNode, NodeChange};
pub use forward::{Forward, PodPlace, frame};
pub use lease::{LeaseQuery, Leases, OwnLease, SeenLease};
pub use node::NodeFacts;
pub use notes::NodeNotes;
pub use objects::{Kind, Part};
pub use placed::Place;
pub use pods::{Eviction, PodFacts};
pub use secret::{SecretData, SecretFacts};
pub use servers::ServerProbe;
pub use signing::SigningRequest;
pub use version::ServerVersion;
