//! The health and status server, over plain HTTP/1.1.
//!
//! It serves `/healthz`, `/readyz`, `/ready` and `/metrics` for the kubelet and Prometheus, and `/status` for
//! administrators.

use std::future::{Future, pending, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::header::{HOST, HeaderValue, LOCATION};
use hyper::{Method, Request, Response, StatusCode};
use landfall_net::Listener;
use landfall_net::metrics::METRICS_MEDIA_TYPE;
use landfall_net::serve::{Accept, Handler, Limits, Peer, RequestBody, ResponseBody, Session, response};

const LIMITS: Limits = Limits {
    connections: 64,
    idle: Duration::from_secs(10),
    stalled_write: Duration::from_secs(10),
    ..Limits::SMALL
};
/// Maximum duration of a connection; probes have shorter timeouts.
const LIFETIME: Duration = Duration::from_secs(10);
const JSON: &str = "application/json";

/// The data behind the endpoints.
pub(crate) trait Health: Send + Sync + 'static {
    /// Returns the readiness as upstream's status code, with the reason if not ready.
    fn ready(&self, verbose: bool) -> (u16, String);
    fn metrics(&self) -> String;
    /// Returns JSON.
    fn status(&self) -> String;
}

/// The port of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Door {
    /// For the kubelet and Prometheus.
    Probes,
    /// For administrators on this host.
    Admin {
        /// Port of the metrics in upstream, if not this one.
        metrics_at: Option<u16>,
    },
}

struct HealthHandler {
    health: Arc<dyn Health>,
    door: Door,
}

#[derive(Debug, PartialEq, Eq)]
struct Answer {
    status: u16,
    kind: &'static str,
    location: Option<String>,
    body: String,
}

/// Serves without end.
pub(crate) async fn serve(listener: Listener, health: Arc<dyn Health>, door: Door) {
    let handler = Arc::new(HealthHandler { health, door });
    landfall_net::serve::serve(Accept::Tcp(listener), LIMITS, handler, pending()).await;
}

impl Handler for HealthHandler {
    type State = ();

    fn open(&self, _: Peer) -> Option<Session<()>> {
        Some(Session { lifetime: Some(LIFETIME), keep_alive: false, ..Session::new(()) })
    }

    fn handle<'h>(
        &'h self,
        _: &'h Arc<()>,
        request: Request<RequestBody>,
    ) -> Pin<Box<dyn Future<Output = Response<ResponseBody>> + Send + 'h>> {
        let answer = respond(&request, &*self.health, self.door);
        let status = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = response(status, answer.kind, answer.body);
        if let Some(Ok(location)) = answer.location.map(HeaderValue::try_from) {
            response.headers_mut().insert(LOCATION, location);
        }
        Box::pin(ready(response))
    }
}

fn respond<B>(request: &Request<B>, health: &dyn Health, door: Door) -> Answer {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return Answer::text(405, "only GET is allowed");
    }
    let (path, query) = (request.uri().path(), request.uri().query().unwrap_or_default());
    match (path, door) {
        ("/metrics", Door::Admin { metrics_at: Some(port) }) => {
            let location = format!("http://{}:{port}/metrics", host(request));
            Answer { location: Some(location), ..Answer::text(301, "") }
        }
        ("/metrics", _) => Answer { kind: METRICS_MEDIA_TYPE, ..Answer::text(200, health.metrics()) },
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

/// Returns the host of the request, without its port.
fn host<B>(request: &Request<B>) -> &str {
    let host = request.headers().get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
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
        for (method, target, expected) in [
            (Method::GET, "/healthz", (200, "ok")),
            (Method::GET, "/readyz", (503, "short")),
            (Method::GET, "/ready?verbose", (503, "at length")),
            (Method::GET, "/readyz?verbose=1", (503, "at length")),
            (Method::GET, "/metrics", (200, "m 1\n")),
            (Method::GET, "/debug", (404, "404 page not found\n")),
            (Method::POST, "/healthz", (405, "only GET is allowed")),
        ] {
            let request = Request::builder().method(method).uri(target).body(()).unwrap();
            let answer = respond(&request, &Always(503), Door::Probes);
            assert_eq!((answer.status, answer.body.as_str()), expected, "{target}");
        }
    }

    #[test]
    fn administrators_have_a_port_of_their_own() {
        let here = Door::Admin { metrics_at: None };
        assert_eq!(respond(&Request::get("/status").body(()).unwrap(), &Always(200), here).kind, JSON);
        assert_eq!(
            respond(&Request::get("/status").body(()).unwrap(), &Always(200), Door::Probes).status,
            404
        );
        assert_eq!(respond(&Request::get("/metrics").body(()).unwrap(), &Always(200), here).body, "m 1\n");
        // Upstream's agent redirects scrapers to its other port.
        let elsewhere = Door::Admin { metrics_at: Some(8093) };
        for (host, location) in [
            ("node-1:8094", "http://node-1:8093/metrics"),
            ("[::1]:8094", "http://[::1]:8093/metrics"),
            ("", "http://localhost:8093/metrics"),
        ] {
            let request = Request::get("/metrics").header(HOST, host).body(()).unwrap();
            let answer = respond(&request, &Always(200), elsewhere);
            assert_eq!((answer.status, answer.location.as_deref()), (301, Some(location)));
        }
    }
}
