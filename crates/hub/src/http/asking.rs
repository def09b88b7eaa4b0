//! Authentication of a request from its connection and headers.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use jiff::Timestamp;

use super::Served;
use crate::access::{Caller, Presented};
use crate::problem::Problem;

/// The cookie with a browser's token. The prefix makes browsers accept it only from the hub itself, over TLS.
pub(super) const COOKIE: &str = "__Host-landfall";

/// The connection of a request; the server adds it to each request.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    pub peer: IpAddr,
    /// The client's verified certificate in DER form.
    pub certificate: Option<Arc<[u8]>>,
}

/// An authenticated caller.
pub(super) struct Asking(pub(super) Caller);

// === impl Asking ===

impl FromRequestParts<Served> for Asking {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, served: &Served) -> Result<Self, Problem> {
        let access = &served.hub.access;
        let connection = parts.extensions.get::<Connection>();
        let text = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok());
        // HTTP/2 sends the host in the URI.
        let host = parts.uri.authority().map(axum::http::uri::Authority::as_str).or_else(|| text("host"));
        let token = token(&parts.headers);
        let presented = Presented {
            peer: connection.map(|connection| connection.peer),
            certificate: connection.and_then(|connection| connection.certificate.as_deref()),
            token,
            proxy_user: access.proxy.as_ref().and_then(|proxy| only(&parts.headers, &proxy.header)),
            host,
        };
        Ok(Self(access.identify(presented, Timestamp::now())?))
    }
}

/// Returns the value of a header that occurs exactly once. A proxy might append its header to that of the client.
/// Accepting either value would let clients choose their identity.
fn only<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (Some(value), None) => value.to_str().ok(),
        (Some(_), Some(_)) => Some(""),
        (None, _) => None,
    }
}

/// Returns the token of the `Authorization` header or of a browser's cookie.
pub(super) fn token(headers: &HeaderMap) -> Option<&str> {
    if let Some(value) = headers.get(header::AUTHORIZATION) {
        // A header that is not a bearer token counts as an invalid credential, not as a missing one.
        return Some(value.to_str().ok().and_then(|value| value.strip_prefix("Bearer ")).unwrap_or(""));
    }
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    cookies
        .flat_map(|cookies| cookies.split(';'))
        .find_map(|cookie| cookie.trim().strip_prefix(COOKIE)?.strip_prefix('='))
}

/// Rejects requests that browsers mark as caused by another site, unless they only read.
pub(super) async fn refuse_cross_site(request: Request, next: Next) -> Response {
    let reading = matches!(*request.method(), Method::GET | Method::HEAD);
    if !reading && !is_from_here(&request) {
        return Problem::new(403, "Not permitted", "another site asked for this").into_response();
    }
    next.run(request).await
}

/// Returns whether the request has the same origin. Current browsers send the relation of the sites. Older browsers,
/// and those without TLS, send only the origin. Other clients send neither.
fn is_from_here(request: &Request) -> bool {
    let text = |name: &str| request.headers().get(name).map(|value| value.to_str().unwrap_or("?"));
    if let Some(site) = text("sec-fetch-site") {
        return matches!(site, "same-origin" | "none");
    }
    let Some(origin) = text("origin") else { return true };
    let host = request.uri().authority().map(axum::http::uri::Authority::as_str).or_else(|| text("host"));
    let origin = origin.parse::<Uri>().ok();
    let origin = origin.as_ref().and_then(Uri::authority).map(axum::http::uri::Authority::as_str);
    origin.is_some() && origin == host
}
