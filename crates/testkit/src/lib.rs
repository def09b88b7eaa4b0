//! A test bed of real components, each started on demand on free ports in a temporary directory.
//!
//! A component is stopped and removed when its value is dropped. If the test fails, the component's log is
//! printed.
//!
//! `cargo xtask testbed` builds and installs the components' requirements. A test checks its needs first and
//! returns if they are not met. The last lines of the run count and name such tests, and
//! `LANDFALL_TESTBED=required` turns them into failures:
//!
//! ```no_run
//! use landfall_testkit::{ApiServer, Need, have};
//!
//! #[test]
//! fn namespaces_are_listed() {
//!     if !have(ApiServer::NEEDS) {
//!         return;
//!     }
//!     let cluster = ApiServer::start().unwrap();
//!     assert!(cluster.kubectl(&["get", "namespaces"]).unwrap().contains("kube-system"));
//! }
//! ```

mod apiserver;
mod azurite;
mod binary;
mod bootstrap;
mod browser;
mod cache;
mod cluster_api;
mod controller_manager;
mod file_server;
mod http_server;
pub mod isolated;
mod nats_server;
mod need;
mod node;
mod object_store;
mod package;
mod port;
mod postgres;
mod process;
mod registry;
mod versitygw;
mod wait;
mod webhook;

pub use apiserver::{ApiServer, ApiServerSpec, Sibling};
pub use binary::Binary;
pub use bootstrap::BootstrapToken;
pub use browser::{Accessible, Browser, BrowserEvent, Key, Theme};
pub use cache::cache_dir;
pub use cluster_api::ClusterApi;
pub use controller_manager::ControllerManager;
pub use file_server::{FileServer, Serve};
pub use http_server::{HttpRequest, serve_http};
pub use nats_server::NatsServer;
pub use need::{Need, has_program, have};
pub use node::{API_NAME, Dns, HOST_ADDRESS, Invitation, Node, NodeSpec, POD_IMAGE, node_image};
pub use object_store::{ObjectServer, ObjectStore};
pub use package::Package;
pub use port::free_port;
pub use postgres::{Durability, Postgres};
pub use process::Process;
pub use registry::Registry;
pub use wait::eventually;
pub use webhook::{Answer, Webhook};
