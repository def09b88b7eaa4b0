//! A tunnel through the endpoint to a node's port, for use as ssh's ProxyCommand. The private key and the check of the
//! host key stay with the client; the gateway sees only ciphertext.

use hyper::{HeaderMap, Method};
use landfall_net::http::BoxStream;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};

use crate::connection::said;
use crate::{Endpoint, Error, Found};

/// Bytes copied per read in each direction.
const CARRY: usize = 64 << 10;

/// Connects `input` and `output` with `target` (`host:port`) until both directions have ended.
pub async fn connect(
    found: Found,
    endpoint: &Endpoint,
    target: &str,
    mut input: impl AsyncRead + Unpin,
    mut output: impl AsyncWrite + Unpin,
) -> Result<(), Error> {
    let failed = |source| Error::Carry { target: target.to_owned(), source };
    let node = open(found, endpoint, target).await?;
    let (mut from_node, mut to_node) = tokio::io::split(node);
    let out = async {
        let mut buffered = tokio::io::BufReader::with_capacity(CARRY, &mut input);
        tokio::io::copy_buf(&mut buffered, &mut to_node).await?;
        to_node.shutdown().await
    };
    let back = async {
        let mut buffered = tokio::io::BufReader::with_capacity(CARRY, &mut from_node);
        tokio::io::copy_buf(&mut buffered, &mut output).await?;
        output.flush().await
    };
    // After the node has ended, further input has no receiver.
    tokio::pin!(out, back);
    tokio::select! {
        done = &mut back => done.map_err(failed),
        done = &mut out => {
            done.map_err(failed)?;
            back.await.map_err(failed)
        }
    }
}

/// Opens a tunnel to `target` (`host:port`).
pub(crate) async fn open(mut found: Found, endpoint: &Endpoint, target: &str) -> Result<BoxStream, Error> {
    let response = found.connection.ask(Method::CONNECT, target, HeaderMap::new()).await?;
    if response.status() != 200 {
        let (status, said) = said(response).await;
        return Err(Error::Tunnel {
            target: target.to_owned(),
            endpoint: endpoint.to_string(),
            status,
            said,
        });
    }
    Ok(response.upgrade().await?)
}
