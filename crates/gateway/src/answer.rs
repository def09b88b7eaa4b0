//! Responses of the gateway itself, in the format that API clients expect.

use hyper::header::{self, HeaderValue};
use hyper::{Response, StatusCode};

use crate::body::Body;

pub(crate) type Answer = Response<Body>;

/// A request that the gateway rejects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) code: StatusCode,
    pub(crate) message: String,
}

/// Seconds until clients may retry.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("1");

/// Returns a failure as `metav1.Status`.
pub(crate) fn failure(code: StatusCode, message: &str) -> Answer {
    let reason = match code {
        StatusCode::BAD_REQUEST => "BadRequest",
        StatusCode::UNAUTHORIZED => "Unauthorized",
        StatusCode::FORBIDDEN => "Forbidden",
        StatusCode::NOT_FOUND => "NotFound",
        StatusCode::METHOD_NOT_ALLOWED => "MethodNotAllowed",
        StatusCode::TOO_MANY_REQUESTS => "TooManyRequests",
        StatusCode::SERVICE_UNAVAILABLE => "ServiceUnavailable",
        StatusCode::GATEWAY_TIMEOUT => "Timeout",
        _ => "InternalError",
    };
    let status = serde_json::json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code.as_u16(),
    });
    let mut answer = typed(code, "application/json", status.to_string() + "\n");
    if matches!(code, StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS) {
        answer.headers_mut().insert(header::RETRY_AFTER, RETRY_AFTER);
    }
    answer
}

pub(crate) fn json(value: &impl serde::Serialize) -> Answer {
    match serde_json::to_string(value) {
        Ok(text) => typed(StatusCode::OK, "application/json", text + "\n"),
        Err(_) => failure(StatusCode::INTERNAL_SERVER_ERROR, "cannot write the answer"),
    }
}

pub(crate) fn text(code: StatusCode, text: impl Into<String>) -> Answer {
    typed(code, "text/plain; charset=utf-8", text.into())
}

fn typed(code: StatusCode, kind: &'static str, text: String) -> Answer {
    let mut answer = Response::new(Body::text(text));
    *answer.status_mut() = code;
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    answer
}

// === impl Refusal ===

impl Refusal {
    pub(crate) fn new(code: StatusCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

impl From<Refusal> for Answer {
    fn from(refusal: Refusal) -> Self {
        failure(refusal.code, &refusal.message)
    }
}
