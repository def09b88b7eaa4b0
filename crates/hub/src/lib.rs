//! The hub: reports and bundles in, the fleet on one page out.
//!
//! [`Server`] runs one. Inside, [`Hub`](hub::Hub) does what callers ask for, free of HTTP; [`store`] remembers; `http` is
//! the thin layer of routes and pages in front. `docs/guides/hub.md` tells how to run it, `docs/reference/hub.openapi.json`
//! how to talk to it.

mod access;
mod bundles;
mod client;
mod config;
mod converse;
mod counters;
mod enrol;
mod http;
mod hub;
mod lingering;
mod machine;
mod name;
mod objects;
#[cfg(feature = "schema")]
mod openapi;
mod problem;
mod progress;
mod proof;
mod pull;
mod receive;
mod roles;
mod server;
mod take;
mod tls;
mod token;
mod unpack;

pub mod store;

pub use access::{InvalidNetwork, Network, Proxy};
pub use client::{Client, ClientError};
pub use config::{Config, ConfigError, ObjectPlace, StorePlace, TlsFiles};
#[cfg(feature = "schema")]
pub use http::metrics::page_at_start as metrics_at_start;
pub use landfall_wire::ConnectProxy;
pub use name::{InvalidNodeName, NodeName};
pub use objects::{BucketPlace, BucketPlaceError, ObjectError};
#[cfg(feature = "schema")]
pub use openapi::document as openapi_document;
pub use pull::{Bundles, Neighbours, Pull, PullProxy, PulledAgent, PulledCluster};
pub use roles::WatchedRole;
pub use server::{HubError, Server};
pub use take::{Afterwards, CloudEvent, EventError, Take, TakeNats, TakeObjects};
pub use tls::TlsError;
pub use token::{Holder, TokenError, TokenKey};
