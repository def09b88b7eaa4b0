//! `/healthz`, `/readyz`, `/ready` and `/metrics` over plain HTTP/1.1, as the kubelet and Prometheus ask for them.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::transport::poll_read;

/// A probe's request is a few lines.
const MAX_HEAD: usize = 8 * 1024;
/// A probe that takes longer has given up.
const LIMIT: Duration = Duration::from_secs(10);
/// Probes served at once; more wait to be accepted.
const MAX_PROBES: usize = 64;
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What is behind the endpoints.
pub(crate) trait Health: Send + Sync + 'static {
    /// Why it is not ready, if it is not, with the status upstream answers.
    fn ready(&self, verbose: bool) -> (u16, String);
    fn metrics(&self) -> String;
}

#[derive(Debug)]
pub(crate) struct HealthListener(TcpListener);

// === impl HealthListener ===

impl HealthListener {
    pub(crate) async fn bind(address: SocketAddr) -> io::Result<Self> {
        TcpListener::bind(address).await.map(Self)
    }

    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// Answers for ever.
    pub(crate) async fn serve(self, health: Arc<dyn Health>) {
        let probes = Arc::new(Semaphore::new(MAX_PROBES));
        loop {
            let Ok(permit) = Arc::clone(&probes).acquire_owned().await else { return };
            let Ok((socket, _)) = self.0.accept().await else {
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            };
            let health = Arc::clone(&health);
            tokio::spawn(async move {
                // A probe that fails asks again.
                let _ = tokio::time::timeout(LIMIT, answer(socket, &*health)).await;
                drop(permit);
            });
        }
    }
}

async fn answer(mut socket: TcpStream, health: &dyn Health) -> io::Result<()> {
    let mut head = BytesMut::new();
    while !head.windows(4).any(|window| window == b"\r\n\r\n") {
        let bytes = poll_fn(|cx| poll_read(&mut socket, cx)).await?;
        if bytes.is_empty() || head.len() > MAX_HEAD {
            return Ok(());
        }
        head.extend_from_slice(&bytes);
    }
    let line = head[..].split(|byte| *byte == b'\r').next().unwrap_or_default();
    let (status, body) = respond(&String::from_utf8_lossy(line), health);
    let reason = match status {
        200 => "OK",
        404 => "Not Found",
        405 => "Method Not Allowed",
        500 => "Internal Server Error",
        _ => "Service Unavailable",
    };
    let answer = format!(
        "HTTP/1.1 {status} {reason}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{body}",
        body.len()
    );
    let body_length = if line.starts_with(b"HEAD ") { body.len() } else { 0 };
    socket.write_all(&answer.as_bytes()[..answer.len() - body_length]).await?;
    socket.shutdown().await
}

fn respond(line: &str, health: &dyn Health) -> (u16, String) {
    let mut words = line.split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    if method != "GET" && method != "HEAD" {
        return (405, "only GET is allowed".to_owned());
    }
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    match path {
        "/healthz" => (200, "ok".to_owned()),
        "/readyz" | "/ready" => {
            health.ready(query.split('&').any(|word| word.split('=').next() == Some("verbose")))
        }
        "/metrics" => (200, health.metrics()),
        _ => (404, "404 page not found\n".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Always(u16);

    impl Health for Always {
        fn ready(&self, verbose: bool) -> (u16, String) {
            (self.0, if verbose { "at length" } else { "short" }.to_owned())
        }

        fn metrics(&self) -> String {
            "m 1\n".to_owned()
        }
    }

    #[test]
    fn probes_are_answered() {
        for (line, expected) in [
            ("GET /healthz HTTP/1.1", (200, "ok")),
            ("GET /readyz HTTP/1.1", (503, "short")),
            ("GET /ready?verbose HTTP/1.1", (503, "at length")),
            ("GET /readyz?verbose=1 HTTP/1.1", (503, "at length")),
            ("GET /metrics HTTP/1.1", (200, "m 1\n")),
            ("GET /debug HTTP/1.1", (404, "404 page not found\n")),
            ("POST /healthz HTTP/1.1", (405, "only GET is allowed")),
            ("", (405, "only GET is allowed")),
        ] {
            let (status, body) = respond(line, &Always(503));
            assert_eq!((status, body.as_str()), expected, "{line}");
        }
    }
}
