//! The nodes and certificate requests of an API server.

use hyper::{HeaderMap, Method, StatusCode};
use serde_json::Value;

use crate::connection::{ANSWER_LIMIT, Dialer, Speaks, said};
use crate::{Access, Endpoint, Error};

const NODES: &str = "/api/v1/nodes";
const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
/// The lists of the largest clusters have a few megabytes.
const MAX_LIST: usize = 64 << 20;

/// The lists in the format of the API server.
#[derive(Clone, Debug, Default)]
pub struct Census {
    pub(crate) nodes: Value,
    pub(crate) requests: Value,
}

/// Lists nodes and requests from any API server behind the endpoint, as they all return the same.
pub async fn census(endpoint: &Endpoint, access: &Access) -> Result<Census, Error> {
    let dialer = Dialer::new(endpoint, access, Speaks::ApiServer)?;
    Ok(Census { nodes: list(&dialer, NODES).await?, requests: list(&dialer, REQUESTS).await? })
}

/// Fetches a list on its own connection, because a server may close a connection after the first response.
async fn list(dialer: &Dialer<'_>, path: &'static str) -> Result<Value, Error> {
    let mut connection = dialer.dial().await?;
    let answer = connection.ask(Method::GET, path, HeaderMap::new()).await?;
    if answer.status() != StatusCode::OK {
        let (status, said) = said(answer).await;
        return Err(Error::List { path, status, said });
    }
    let body = answer.bytes(MAX_LIST, ANSWER_LIMIT).await?;
    let said = ", but no JSON".to_owned();
    serde_json::from_slice(&body).map_err(|_| Error::List { path, status: StatusCode::OK.as_u16(), said })
}
