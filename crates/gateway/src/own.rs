//! `/bootstrap` and the paths below it.

use hyper::body::Incoming;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use jiff::Timestamp;
use landfall_evidence::collect::{SinceError, parse_since};
use landfall_model::chain;
use landfall_model::identity::NodeIdentity;
use percent_encoding::percent_decode_str;
use serde::Serialize;

use crate::access::{Need, admit};
use crate::answer::{Answer, failure, json};
use crate::body::Body;
use crate::connection::Connection;
use crate::gather::{Bundle, Packing, Resume};
use crate::phase::Phase;

pub(crate) const BUNDLE: &str = "/bootstrap";
pub(crate) const REPORT: &str = "/bootstrap/report";
pub(crate) const IDENTITY: &str = "/bootstrap/identity";
pub(crate) const TUNNEL: &str = "/bootstrap/tunnel";

/// Version of the identity format. Fields may be added, but existing fields keep their meaning.
const FORMAT: u32 = 1;

/// The identity and phase of this host.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Identity {
    format: u32,
    role: &'static str,
    version: &'static str,
    phase: Phase,
    node: NodeIdentity,
}

/// Marks every response of the gateway, to distinguish it from one of the API server.
const MARK: HeaderName = HeaderName::from_static("landfall-gateway");

/// Answers a request for one of the gateway's own paths.
pub(crate) async fn answer(connection: &Connection, request: Request<Incoming>) -> Answer {
    let mut answer = decide(connection, request).await;
    answer.headers_mut().insert(MARK, HeaderValue::from_static(env!("CARGO_PKG_VERSION")));
    answer
}

async fn decide(connection: &Connection, request: Request<Incoming>) -> Answer {
    let path = request.uri().path();
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut answer = failure(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD are answered here");
        answer.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
        return answer;
    }
    let need = if path == IDENTITY { Need::AnyIdentity } else { Need::Path(BUNDLE) };
    if let Err(denied) = admit(connection, request.method().as_str(), path, request.headers(), need).await {
        return denied.into();
    }
    match path {
        IDENTITY => identity(connection).await,
        REPORT => report(connection, request.method()).await,
        _ => bundle(connection, &request).await,
    }
}

async fn identity(connection: &Connection) -> Answer {
    match connection.gateway.gathers.collector().identity().await {
        Ok(node) => json(&Identity {
            format: FORMAT,
            role: "gateway",
            version: env!("CARGO_PKG_VERSION"),
            phase: connection.gateway.outlook.now().phase,
            node,
        }),
        Err(error) => {
            tracing::warn!(error = %chain(&error), "the collector does not say which machine this is");
            failure(StatusCode::SERVICE_UNAVAILABLE, "the collector does not answer")
        }
    }
}

async fn report(connection: &Connection, method: &Method) -> Answer {
    let kind = HeaderValue::from_static("application/json");
    let mut answer = Response::new(Body::empty());
    if *method == Method::GET {
        match connection.gateway.gathers.collector().report().await {
            Ok(report) => *answer.body_mut() = Body::text(report),
            Err(error) => {
                tracing::warn!(error = %chain(&error), "no report");
                return failure(StatusCode::SERVICE_UNAVAILABLE, "the collector makes no report");
            }
        }
    }
    answer.headers_mut().insert(header::CONTENT_TYPE, kind);
    answer.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}

async fn bundle(connection: &Connection, request: &Request<Incoming>) -> Answer {
    let headers = request.headers();
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    let packing = Packing::accepted(accept);
    if *request.method() == Method::HEAD {
        return headed(Response::new(Body::empty()), packing, None);
    }
    let since = match since(request.uri().query().unwrap_or_default()) {
        Ok(since) => since,
        Err(error) => return failure(StatusCode::BAD_REQUEST, &format!("since: {error}")),
    };
    let resume = resume(headers);
    match connection.gateway.gathers.bundle(packing, since, resume.as_ref()).await {
        Ok((Bundle { id, packing, rest, body }, began)) => {
            connection.gateway.metrics.gathers.add(u64::from(began));
            let mut answer = headed(Response::new(body), packing, Some(&id));
            if let Some((offset, length)) = rest {
                *answer.status_mut() = StatusCode::PARTIAL_CONTENT;
                let range = format!("bytes {offset}-{}/{length}", length.saturating_sub(1));
                if let Ok(range) = HeaderValue::from_str(&range) {
                    answer.headers_mut().insert(header::CONTENT_RANGE, range);
                }
                answer.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(length - offset));
            }
            answer
        }
        Err(error) => {
            tracing::warn!(error = %chain(&error), "no bundle");
            failure(error.code(), &error.to_string())
        }
    }
}

fn headed(mut answer: Answer, packing: Packing, id: Option<&str>) -> Answer {
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(packing.media_type()));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    if let Some(id) = id {
        let name = format!("attachment; filename=\"log-bundle-{id}.{}\"", packing.extension());
        for (header, value) in [(header::CONTENT_DISPOSITION, name), (header::ETAG, format!("\"{id}\""))] {
            if let Ok(value) = HeaderValue::from_str(&value) {
                headers.insert(header, value);
            }
        }
    }
    answer
}

/// Parses `?since=2h`, or a time.
fn since(query: &str) -> Result<Option<Timestamp>, SinceError> {
    parameter(query, "since").map(|text| parse_since(&text, Timestamp::now())).transpose()
}

/// Returns the decoded value of a parameter.
pub(crate) fn parameter(query: &str, name: &str) -> Option<String> {
    let mut parts = query.split('&').filter_map(|part| part.split_once('='));
    let (_, value) = parts.find(|(found, _)| *found == name)?;
    Some(percent_decode_str(value).decode_utf8_lossy().into_owned())
}

/// Parses the request of an interrupted client: `Range: bytes=N-` of the bundle in `If-Range`. All other requests get a
/// complete bundle.
fn resume(headers: &HeaderMap) -> Option<Resume> {
    let value = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let bundle = value(header::IF_RANGE)?.strip_prefix('"')?.strip_suffix('"')?;
    let offset = value(header::RANGE)?.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok()?;
    Some(Resume { bundle: bundle.to_owned(), offset })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_named_bundle_is_resumed() {
        for (range, bundle, expected) in [
            (Some("bytes=100-"), Some("\"20260102\""), Some(100)),
            (Some("bytes=100-"), None, None),
            (Some("bytes=100-200"), Some("\"20260102\""), None),
            (Some("bytes=-5"), Some("\"20260102\""), None),
            (Some("bytes=100-"), Some("20260102"), None),
            (None, Some("\"20260102\""), None),
        ] {
            let mut headers = HeaderMap::new();
            for (name, value) in [(header::RANGE, range), (header::IF_RANGE, bundle)] {
                if let Some(value) = value {
                    headers.insert(name, HeaderValue::from_static(value));
                }
            }
            assert_eq!(resume(&headers).map(|resume| resume.offset), expected, "{range:?} {bundle:?}");
        }
    }
}
