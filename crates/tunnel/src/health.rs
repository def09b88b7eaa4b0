//! `/healthz`, `/readyz`, `/ready` and `/metrics` over plain HTTP/1.1, as the kubelet and Prometheus ask for them, and
//! `/status` for administrators.

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
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";
const JSON: &str = "application/json";

/// What is behind the endpoints.
pub(crate) trait Health: Send + Sync + 'static {
    /// Why it is not ready, if it is not, with the status upstream answers.
    fn ready(&self, verbose: bool) -> (u16, String);
    fn metrics(&self) -> String;
    /// JSON.
    fn status(&self) -> String;
}

/// Which port was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Door {
    /// For kubelet and Prometheus.
    Probes,
    /// For administrators on this machine.
    Admin {
        /// Where upstream's metrics are instead, if they are not here.
        metrics_at: Option<u16>,
    },
}

#[derive(Debug)]
pub(crate) struct HealthListener(TcpListener);

#[derive(Debug, PartialEq, Eq)]
struct Answer {
    status: u16,
    kind: &'static str,
    location: Option<String>,
    body: String,
}

// === impl HealthListener ===

impl HealthListener {
    pub(crate) async fn bind(address: SocketAddr) -> io::Result<Self> {
        crate::socket::listen(address).await.map(Self)
    }

    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// Answers for ever.
    pub(crate) async fn serve(self, health: Arc<dyn Health>, door: Door) {
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
                let _ = tokio::time::timeout(LIMIT, answer(socket, &*health, door)).await;
                drop(permit);
            });
        }
    }
}

async fn answer(mut socket: TcpStream, health: &dyn Health, door: Door) -> io::Result<()> {
    let mut head = BytesMut::new();
    while !head.windows(4).any(|window| window == b"\r\n\r\n") {
        let bytes = poll_fn(|cx| poll_read(&mut socket, cx)).await?;
        if bytes.is_empty() || head.len() > MAX_HEAD {
            return Ok(());
        }
        head.extend_from_slice(&bytes);
    }
    let head = String::from_utf8_lossy(&head);
    let Answer { status, kind, location, body } = respond(&head, health, door);
    let reason = match status {
        200 => "OK",
        301 => "Moved Permanently",
        404 => "Not Found",
        405 => "Method Not Allowed",
        500 => "Internal Server Error",
        _ => "Service Unavailable",
    };
    let location = location.map(|location| format!("Location: {location}\r\n")).unwrap_or_default();
    let mut answer = format!(
        "HTTP/1.1 {status} {reason}\r\nContent-Type: {kind}\r\n{location}Content-Length: {}\r\n\
         Connection: close\r\n\r\n",
        body.len()
    );
    if !head.starts_with("HEAD ") {
        answer += &body;
    }
    socket.write_all(answer.as_bytes()).await?;
    socket.shutdown().await
}

fn respond(head: &str, health: &dyn Health, door: Door) -> Answer {
    let mut words = head.lines().next().unwrap_or_default().split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    if method != "GET" && method != "HEAD" {
        return Answer::text(405, "only GET is allowed");
    }
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    match (path, door) {
        ("/metrics", Door::Admin { metrics_at: Some(port) }) => {
            let location = format!("http://{}:{port}/metrics", host(head));
            Answer { location: Some(location), ..Answer::text(301, "") }
        }
        ("/metrics", _) => Answer { kind: METRICS, ..Answer::text(200, health.metrics()) },
        ("/status", Door::Admin { .. }) => Answer { kind: JSON, ..Answer::text(200, health.status()) },
        ("/healthz", Door::Probes) => Answer::text(200, "ok"),
        ("/readyz" | "/ready", Door::Probes) => {
            let verbose = query.split('&').any(|word| word.split('=').next() == Some("verbose"));
            let (status, body) = health.ready(verbose);
            Answer::text(status, body)
        }
        _ => Answer::text(404, "404 page not found\n"),
    }
}

/// The host the client asked, without its port.
fn host(head: &str) -> &str {
    let header = head.lines().skip(1).filter_map(|line| line.split_once(':'));
    let mut hosts = header.filter(|(name, _)| name.eq_ignore_ascii_case("host"));
    let host = hosts.next().map_or("", |(_, value)| value.trim());
    let host = match host.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|digit| digit.is_ascii_digit()) => host,
        _ => host,
    };
    if host.is_empty() { "localhost" } else { host }
}

// === impl Answer ===

impl Answer {
    fn text(status: u16, body: impl Into<String>) -> Self {
        Self { status, kind: "text/plain; charset=utf-8", location: None, body: body.into() }
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

        fn status(&self) -> String {
            "{}".to_owned()
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
            let answer = respond(line, &Always(503), Door::Probes);
            assert_eq!((answer.status, answer.body.as_str()), expected, "{line}");
        }
    }

    #[test]
    fn administrators_have_a_port_of_their_own() {
        let here = Door::Admin { metrics_at: None };
        assert_eq!(respond("GET /status HTTP/1.1", &Always(200), here).kind, JSON);
        assert_eq!(respond("GET /status HTTP/1.1", &Always(200), Door::Probes).status, 404);
        assert_eq!(respond("GET /metrics HTTP/1.1", &Always(200), here).body, "m 1\n");
        // Upstream's agent sends scrapers to its other port.
        let elsewhere = Door::Admin { metrics_at: Some(8093) };
        for (host, location) in [
            ("node-1:8094", "http://node-1:8093/metrics"),
            ("[::1]:8094", "http://[::1]:8093/metrics"),
            ("", "http://localhost:8093/metrics"),
        ] {
            let head = format!("GET /metrics HTTP/1.1\r\nHost: {host}\r\n\r\n");
            let answer = respond(&head, &Always(200), elsewhere);
            assert_eq!((answer.status, answer.location.as_deref()), (301, Some(location)));
        }
    }
}
