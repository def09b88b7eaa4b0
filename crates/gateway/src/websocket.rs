//! A byte stream over WebSocket: the content of messages both ways, a close at the end.

use std::io;

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::BytesMut;
use landfall_net::websocket;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;

const MAGIC: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// Maximum size of a message that is sent.
const PIECE: usize = 16 * 1024;

/// Returns the `Sec-WebSocket-Accept` value for a key.
pub(crate) fn accept(key: &str) -> String {
    STANDARD.encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, format!("{key}{MAGIC}").as_bytes()))
}

/// Copies bytes until one side has finished or failed, because a closed WebSocket carries nothing in either direction.
/// Returns the bytes sent up and down.
pub(crate) async fn carry<S: AsyncRead + AsyncWrite + Unpin>(
    client: S,
    mut node: TcpStream,
) -> io::Result<(u64, u64)> {
    let (mut from_client, mut to_client) = websocket::server(client).await;
    let (mut from_node, mut to_node) = node.split();
    let (mut total_up, mut total_down) = (0, 0);
    let up = async {
        while let Some(bytes) = from_client.next().await? {
            to_node.write_all(&bytes).await?;
            total_up += bytes.len() as u64;
        }
        to_node.shutdown().await
    };
    let down = async {
        loop {
            let mut piece = BytesMut::with_capacity(PIECE);
            let count = from_node.read_buf(&mut piece).await?;
            if count == 0 {
                return Ok(());
            }
            to_client.send(piece.freeze()).await?;
            total_down += count as u64;
        }
    };
    let ended = tokio::select! {
        ended = up => ended,
        ended = down => ended,
    };
    websocket::close(from_client, to_client).await;
    ended.map(|()| (total_up, total_down))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_standards_own_example_is_accepted() {
        assert_eq!(accept("dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }
}
