//! The HTTP CONNECT frontend: one request, then bytes.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};

use super::Shared;
use super::dial::{DialError, dial};
use crate::mux::Tunnel;
use crate::relay::{Socket, relay};
use crate::socket::Peer;
use crate::transport::poll_read;

/// Maximum size of a CONNECT request: a line and a `Host`; kube-apiserver's is 60 bytes long.
const MAX_HEAD: usize = 16 * 1024;
/// The timeout of upstream.
const HEAD_LIMIT: Duration = Duration::from_secs(60);
/// Timeout for a client to read the response.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// Bytes that a client may send before its response.
const MAX_EARLY: usize = 64 * 1024;
const ESTABLISHED: &[u8] = b"HTTP/1.1 200 Connection Established\r\n\r\n";

#[derive(Debug, PartialEq, Eq)]
struct Request {
    address: String,
    /// Bytes after the request.
    rest: Bytes,
}

#[derive(Debug, PartialEq, Eq)]
enum Refusal {
    Malformed,
    Method,
}

enum Dialed {
    Open(Tunnel, Vec<Bytes>),
    Failed(DialError),
    ClientGone,
}

pub(super) async fn serve<S: Peer>(shared: Arc<Shared>, mut socket: S) {
    let _counted = shared.metrics.http_connections.guard();
    let Ok(Some(request)) = tokio::time::timeout(HEAD_LIMIT, read_request(&mut socket)).await else { return };
    let request = match request {
        Ok(request) => request,
        Err(Refusal::Malformed) => return answer(&mut socket, 400, "Bad Request", "malformed request").await,
        Err(Refusal::Method) => {
            let text = "this proxy only supports CONNECT passthrough";
            return answer(&mut socket, 405, "Method Not Allowed", text).await;
        }
    };
    let (tunnel, early) = match dial_while_client_waits(&shared, &mut socket, request).await {
        Dialed::Open(tunnel, early) => (tunnel, early),
        Dialed::ClientGone => return shared.metrics.client_left(),
        Dialed::Failed(error) => {
            let (status, reason) = error.http_status();
            let text = match error {
                DialError::NoAgent => format!("currently no tunnels available: {error}"),
                other => other.to_string(),
            };
            return answer(&mut socket, status, reason, &text).await;
        }
    };
    let _timed = shared.metrics.connection_duration.timer();
    let told = socket.send_alone(ESTABLISHED);
    let Ok(Ok(receipt)) = tokio::time::timeout(ANSWER_LIMIT, told).await else {
        return shared.metrics.answer_unheard();
    };
    let silent = early.is_empty();
    for bytes in early {
        tunnel.send(bytes);
    }
    // kube-apiserver treats bytes that it reads together with the response as an error.
    if silent
        && endpoint_speaks_first(&mut socket, &tunnel).await
        && !matches!(tokio::time::timeout(ANSWER_LIMIT, receipt.signed()).await, Ok(Ok(())))
    {
        return shared.metrics.answer_unheard();
    }
    relay(Socket::Client, &mut socket, &tunnel, Some(&shared.metrics.frontend_write)).await;
}

/// Returns the request, its error, or `None` if the client is gone.
async fn read_request<S: AsyncRead + Unpin>(socket: &mut S) -> Option<Result<Request, Refusal>> {
    let mut head = BytesMut::new();
    loop {
        if let Some(end) = head.windows(4).position(|window| window == b"\r\n\r\n") {
            let rest = head.split_off(end + 4).freeze();
            return Some(parse(&head).map(|address| Request { address, rest }));
        }
        if head.len() > MAX_HEAD {
            return Some(Err(Refusal::Malformed));
        }
        let bytes = poll_fn(|cx| poll_read(socket, cx)).await.ok().filter(|bytes| !bytes.is_empty())?;
        head.extend_from_slice(&bytes);
    }
}

/// Parses the target from the request line; kube-apiserver's `Host` contains another name.
fn parse(head: &[u8]) -> Result<String, Refusal> {
    let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let line = std::str::from_utf8(line).map_err(|_| Refusal::Malformed)?;
    let mut words = line.split(' ');
    let (method, target, version) = (words.next(), words.next(), words.next());
    let well_formed = words.next().is_none() && version.is_some_and(|version| version.starts_with("HTTP/1."));
    match (method, target) {
        (Some("CONNECT"), Some(target)) if well_formed && target.contains(':') => Ok(target.to_owned()),
        (Some("CONNECT"), _) => Err(Refusal::Malformed),
        _ if well_formed => Err(Refusal::Method),
        _ => Err(Refusal::Malformed),
    }
}

/// Dials, and detects if the client disconnects meanwhile: the dial is then dropped, which cancels it at the agent.
async fn dial_while_client_waits<S: AsyncRead + Unpin>(
    shared: &Shared,
    socket: &mut S,
    request: Request,
) -> Dialed {
    let mut early = Vec::new();
    let mut length = request.rest.len();
    if !request.rest.is_empty() {
        early.push(request.rest);
    }
    let mut dialing = pin!(dial(shared, &request.address));
    let dialed = poll_fn(|cx| {
        if let Poll::Ready(dialed) = dialing.as_mut().poll(cx) {
            return Poll::Ready(Some(dialed));
        }
        while length < MAX_EARLY {
            match poll_read(socket, cx) {
                Poll::Ready(Ok(bytes)) if !bytes.is_empty() => {
                    length += bytes.len();
                    early.push(bytes);
                }
                Poll::Ready(_) => return Poll::Ready(None),
                Poll::Pending => break,
            }
        }
        Poll::Pending
    })
    .await;
    match dialed {
        Some(Ok(tunnel)) => Dialed::Open(tunnel, early),
        Some(Err(error)) => Dialed::Failed(error),
        None => Dialed::ClientGone,
    }
}

/// Returns whether the endpoint sends first. The client's data, if any, is then in flight already.
async fn endpoint_speaks_first<S: AsyncRead + Unpin>(socket: &mut S, tunnel: &Tunnel) -> bool {
    poll_fn(|cx| {
        match poll_read(socket, cx) {
            Poll::Ready(Ok(bytes)) => {
                tunnel.send(bytes);
                return Poll::Ready(false);
            }
            // The relay gets the same error.
            Poll::Ready(Err(_)) => return Poll::Ready(false),
            Poll::Pending => {}
        }
        tunnel.poll_incoming(cx).map(|()| true)
    })
    .await
}

async fn answer<S: AsyncWrite + Unpin>(socket: &mut S, status: u16, reason: &str, text: &str) {
    let answer = format!(
        "HTTP/1.1 {status} {reason}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{text}",
        text.len()
    );
    // The client may have disconnected.
    let _ = tokio::time::timeout(ANSWER_LIMIT, async {
        socket.write_all(answer.as_bytes()).await?;
        socket.shutdown().await
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_target_is_the_request_target_and_not_the_host() {
        let head = b"CONNECT 10.0.0.1:443 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n";
        assert_eq!(parse(head), Ok("10.0.0.1:443".to_owned()));
        assert_eq!(parse(b"CONNECT [::1]:443 HTTP/1.1\r\n\r\n"), Ok("[::1]:443".to_owned()));
    }

    #[test]
    fn other_requests_are_refused() {
        assert_eq!(parse(b"GET / HTTP/1.1\r\n\r\n"), Err(Refusal::Method));
        for head in [
            &b"CONNECT a HTTP/1.1\r\n\r\n"[..],
            b"CONNECT a:1\r\n\r\n",
            b"\r\n\r\n",
            b"\xff \xff HTTP/1.1\r\n\r\n",
        ] {
            assert_eq!(parse(head), Err(Refusal::Malformed), "{head:?}");
        }
    }
}
