//! Bundles of nodes from their own agents, without a login or files copied to the node. The agent's port is reached
//! directly, or through the tunnel.

use std::path::Path;

use hyper::header::ACCEPT;
use hyper::{HeaderMap, Method, StatusCode};

use crate::connection::{Connection, Dialer, Speaks, said};
use crate::fetch::{Arrival, take_all};
use crate::{Access, Endpoint, Error, Fetched, Found, Wanted, tunnel};

/// Default port of agents.
pub const AGENT_PORT: u16 = 8710;

/// Fetches a new bundle from an agent whose port is directly reachable.
pub async fn from_agent(
    agent: &Endpoint,
    access: &Access,
    wanted: &Wanted,
    to: &Path,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Fetched, Error> {
    let connection = Dialer::new(agent, access, Speaks::ApiServer)?.dial().await?;
    bundle(connection, agent, wanted, to, progress).await
}

/// Fetches a new bundle from an agent through the tunnel of the endpoint.
pub async fn from_agent_through(
    (found, endpoint): (Found, &Endpoint),
    agent: &Endpoint,
    access: &Access,
    wanted: &Wanted,
    to: &Path,
) -> Result<Fetched, Error> {
    let dialer = Dialer::new(agent, access, Speaks::ApiServer)?;
    let way = tunnel::open(found, endpoint, &agent.authority()).await?;
    bundle(dialer.over(way).await?, agent, wanted, to, &|_| {}).await
}

async fn bundle(
    mut connection: Connection,
    agent: &Endpoint,
    wanted: &Wanted,
    to: &Path,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Fetched, Error> {
    let mut headers = HeaderMap::new();
    headers.insert(ACCEPT, wanted.kind());
    let response = connection.ask(Method::GET, "/bundle", headers).await?;
    if response.status() != StatusCode::OK {
        let (status, said) = said(response).await;
        return Err(Error::Agent { node: agent.host().to_owned(), status, said });
    }
    let mut arrival = Arrival::open(to)?;
    let cut = take_all(response, &mut arrival, progress).await?;
    arrival.finish(cut)
}
