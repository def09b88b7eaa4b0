//! The operator's client of the gateway. It finds the bootstrap host behind a load balancer, downloads its bundle, and
//! opens tunnels to other nodes through it. It also lists hosts that never became nodes.

mod agent;
mod census;
mod connection;
mod endpoint;
mod error;
mod fetch;
mod find;
mod nodes;
mod proxy;
mod strangers;
mod tls;
mod tunnel;

pub use agent::{AGENT_PORT, from_agent, from_agent_through};
pub use census::{Census, census};
pub use endpoint::{Access, Endpoint};
pub use error::Error;
pub use fetch::{Fetched, Route, Wanted, fetch};
pub use find::{Found, IdentityAnswer, Patience, find};
pub use nodes::{NodeAnswer, Ssh, over_ssh};
pub use strangers::{Stranger, strangers};
pub use tunnel::connect;
