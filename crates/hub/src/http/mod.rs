//! HTTP layer of the [`Hub`](crate::hub::Hub): routes, authentication and responses.
//!
//! The operations themselves are in `Hub`.

mod api;
mod asking;
mod events;
mod login;
pub(crate) mod metrics;
mod pages;
mod progress;
mod routes;
mod take;

use std::sync::Arc;

use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use landfall_net::serve::BodyBudget;

use crate::access::Caller;
use crate::hub::Hub;
use crate::limits::{BODIES, CONSOLE_BODIES};
use crate::problem::Problem;

#[cfg(feature = "schema")]
pub(crate) use api::{BatchAnswer, FoundList, Groups, History, LogFiles, RoleList, TokenWish};
pub(crate) use asking::Connection;
pub(crate) use events::Events;
#[cfg(feature = "schema")]
pub(crate) use routes::Method;
pub(crate) use routes::{Operation, ROUTES};

/// No external content, no inline content and no framing: even markup that escaped sanitizing would have no effect.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; \
     connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// Maximum length of the library's message about a rejected request.
const MAX_SAID: usize = 4096;

/// State of every handler.
#[derive(Clone, Debug)]
pub(crate) struct Served {
    pub(crate) hub: Arc<Hub>,
    pub(crate) events: Events,
    pub(crate) bodies: BodyBudget<Caller>,
    pub(crate) console_bodies: BodyBudget<Caller>,
}

/// Returns the router with all routes of the hub.
pub(crate) fn router(hub: Arc<Hub>, events: Events) -> Router {
    let mut router = Router::new();
    for route in ROUTES {
        router = router.route(route.path, api::handler(route.operation));
    }
    router
        .merge(pages::router())
        .merge(login::router())
        .merge(metrics::router())
        .fallback(async || StatusCode::NOT_FOUND)
        .layer(axum::middleware::from_fn(in_our_words))
        .layer(axum::middleware::map_response(with_headers))
        .layer(axum::middleware::from_fn(asking::refuse_cross_site))
        .with_state(Served {
            hub,
            events,
            bodies: BodyBudget::new(BODIES),
            console_bodies: BodyBudget::new(CONSOLE_BODIES),
        })
}

/// Converts the library's own rejections to a page for browsers and to a problem document for other clients. These
/// are unknown paths, invalid numbers and wrong methods; all other rejections have the same form.
async fn in_our_words(request: Request, next: Next) -> Response {
    let for_people = pages::are_wanted(request.headers());
    let response = next.run(request).await;
    let kind = response.headers().get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    if !response.status().is_client_error() || kind.is_some_and(|kind| !kind.starts_with(b"text/plain")) {
        return response;
    }
    let (parts, body) = response.into_parts();
    let said = axum::body::to_bytes(body, MAX_SAID).await.unwrap_or_default();
    let (title, detail) = match parts.status {
        StatusCode::NOT_FOUND => ("Not here", "there is nothing at this address".into()),
        StatusCode::METHOD_NOT_ALLOWED => ("Not understood", "this address does not know that method".into()),
        _ => ("Not understood", String::from_utf8_lossy(&said)),
    };
    let problem = Problem::new(parts.status.as_u16(), title, detail);
    let mut answer = if for_people { pages::of(problem) } else { problem.into_response() };
    if let Some(allowed) = parts.headers.get(header::ALLOW) {
        answer.headers_mut().insert(header::ALLOW, allowed.clone());
    }
    answer
}

async fn with_headers(mut response: Response) -> Response {
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

// === impl Problem ===

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let retry = self.retry.then_some([(header::RETRY_AFTER, "5")]);
        let challenge =
            (status == StatusCode::UNAUTHORIZED).then_some([(header::WWW_AUTHENTICATE, "Bearer")]);
        let kind = [(header::CONTENT_TYPE, "application/problem+json")];
        (status, retry, challenge, kind, serde_json::to_string(&self).unwrap_or_default()).into_response()
    }
}

/// A JSON response, or a problem.
pub(crate) type Answer<T> = Result<Json<T>, Problem>;
