//! The hub receives reports and bundles and shows the fleet on one page.
//!
//! [`Server`] runs a hub. `hub::Hub` implements its operations independent of HTTP, [`store`] is its database, and
//! `http` contains the routes and pages. See `docs/guides/hub.md` for operation and
//! `docs/reference/hub.openapi.json` for the API.

mod access;
mod bundles;
mod client;
mod config;
mod counters;
mod enrol;
mod http;
mod hub;
mod limits;
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
mod token;
mod unpack;

pub mod store;

pub use access::Proxy;
pub use client::{Client, ClientError};
pub use config::{Config, ConfigError, ObjectPlace, StorePlace};
#[cfg(feature = "schema")]
pub use http::metrics::page_at_start as metrics_at_start;
pub use landfall_net::ConnectProxy;
pub use landfall_net::{CertificateFiles, Network, ServerTlsFiles, TlsError};
pub use name::{InvalidNodeName, NodeName};
pub use objects::{BucketPlace, BucketPlaceError, ObjectError};
#[cfg(feature = "schema")]
pub use openapi::document as openapi_document;
pub use pull::{Bundles, Neighbours, Pull, PullProxy, PulledAgent, PulledCluster};
pub use roles::WatchedRole;
pub use server::{HubError, Server};
pub use take::{Afterwards, CloudEvent, EventError, Take, TakeNats, TakeObjects};
pub use token::{Holder, TokenError, TokenKey};
