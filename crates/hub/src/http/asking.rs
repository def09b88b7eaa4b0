//! Who sent a request, from what the connection and its headers say.

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

/// The cookie a browser carries its token in. The prefix makes browsers refuse to take it from anywhere but us, over TLS.
pub(super) const COOKIE: &str = "__Host-landfall";

/// What is known of the connection a request came over; the server adds it to each request.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    pub peer: IpAddr,
    /// The client's certificate, verified, DER.
    pub certificate: Option<Arc<[u8]>>,
}

/// A caller that was recognised.
pub(super) struct Asking(pub(super) Caller);

// === impl Asking ===

impl FromRequestParts<Served> for Asking {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, served: &Served) -> Result<Self, Problem> {
        let access = &served.hub.access;
        let connection = parts.extensions.get::<Connection>();
        let text = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok());
        // HTTP/2 names the host in the address.
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

/// The value of a header. One that comes twice has none that counts: a proxy that adds its own to what the caller sent would
/// let callers choose who they are.
fn only<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (Some(value), None) => value.to_str().ok(),
        (Some(_), Some(_)) => Some(""),
        (None, _) => None,
    }
}

/// The token of a program's header, or of a browser's cookie.
pub(super) fn token(headers: &HeaderMap) -> Option<&str> {
    if let Some(value) = headers.get(header::AUTHORIZATION) {
        // A header that is no bearer token is a credential that is not good, not the lack of one.
        return Some(value.to_str().ok().and_then(|value| value.strip_prefix("Bearer ")).unwrap_or(""));
    }
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    cookies
        .flat_map(|cookies| cookies.split(';'))
        .find_map(|cookie| cookie.trim().strip_prefix(COOKIE)?.strip_prefix('='))
}

/// Browsers say when another site made them send something; such requests change nothing here.
pub(super) async fn refuse_cross_site(request: Request, next: Next) -> Response {
    let reading = matches!(*request.method(), Method::GET | Method::HEAD);
    if !reading && !is_from_here(&request) {
        return Problem::new(403, "Not permitted", "another site asked for this").into_response();
    }
    next.run(request).await
}

/// Browsers of today name the kind of site; older ones, and those that came without TLS, only the site itself. Programs name
/// neither.
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
