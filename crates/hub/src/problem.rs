//! Error responses (RFC 9457).

use landfall_model::chain;
use landfall_model::envelope::EnvelopeError;
use landfall_net::serve::ReadBodyError;
use serde::Serialize;

use crate::access::Denied;
use crate::bundles::BundleError;
use crate::receive::ReportError;
use crate::store::{Refusal, StoreError};
use crate::unpack::UnpackError;

/// An error response. `retry` states whether the same request may succeed later.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Problem {
    pub status: u16,
    pub title: &'static str,
    pub detail: String,
    pub retry: bool,
}

// === impl Problem ===

impl Problem {
    pub(crate) fn new(status: u16, title: &'static str, detail: impl Into<String>) -> Self {
        Self { status, title, detail: detail.into(), retry: matches!(status, 408 | 429 | 500 | 503) }
    }

    pub(crate) fn not_found(what: &str) -> Self {
        Self::new(404, "Not here", format!("{what} is not known to this hub"))
    }

    pub(crate) fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(400, "Not understood", detail)
    }
}

impl From<Denied> for Problem {
    fn from(denied: Denied) -> Self {
        let (status, title) = match &denied {
            Denied::NoCredential | Denied::Token(_) => (401, "Who are you?"),
            Denied::Host => (421, "Wrong name"),
            // Agents discard such a report: most machines get their name shortly after their agent has started.
            Denied::OtherPrefix { .. } | Denied::Nameless(_) => (422, "Not a report of this token"),
            Denied::Certificate
            | Denied::ProxyUser
            | Denied::NotAllowed(_)
            | Denied::OtherNode { .. }
            | Denied::Unproven => (403, "Not permitted"),
        };
        Self::new(status, title, chain(&denied).to_string())
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        // Errors of the store are for the operator's log, not for the response.
        tracing::warn!(error = %chain(&error), "The store did not answer.");
        Self::new(503, "Try again later", "the store cannot do this now")
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        let (status, title) = match refusal {
            Refusal::IdTaken | Refusal::Replay | Refusal::Forgotten => (409, "Refused"),
            Refusal::WrongKey | Refusal::NotSigned | Refusal::KnownUnsigned => (403, "Not permitted"),
            Refusal::TooManyNew => (429, "Try again later"),
        };
        Self::new(status, title, refusal.to_string())
    }
}

impl From<ReportError> for Problem {
    fn from(error: ReportError) -> Self {
        let status = match &error {
            ReportError::TooLong { .. } => 413,
            ReportError::Envelope(EnvelopeError::Signature) => 403,
            _ => 422,
        };
        Self::new(status, "Not a report", chain(&error).to_string())
    }
}

impl From<ReadBodyError> for Problem {
    fn from(error: ReadBodyError) -> Self {
        let status = error.status();
        Self::new(status.as_u16(), status.canonical_reason().unwrap_or_default(), error.to_string())
    }
}

impl From<UnpackError> for Problem {
    fn from(error: UnpackError) -> Self {
        match &error {
            UnpackError::Unknown(_) => Self::new(415, "Not understood", error.to_string()),
            UnpackError::TooLarge { .. } => Self::new(413, "Too large", error.to_string()),
            UnpackError::Damaged(_) => Self::new(400, "Not understood", chain(&error).to_string()),
        }
    }
}

impl From<BundleError> for Problem {
    fn from(error: BundleError) -> Self {
        match &error {
            BundleError::TooLarge { .. } => Self::new(413, "Too large", error.to_string()),
            BundleError::Stream(_) => Self::new(408, "Cut off", chain(&error).to_string()),
            BundleError::Long => Self::new(422, "Too large", error.to_string()),
            BundleError::NoRoom => Self::new(503, "Try again later", error.to_string()),
            // Agents discard such a bundle: it would be rejected again.
            BundleError::OtherNode { .. }
            | BundleError::Digest
            | BundleError::NotABundle(_)
            | BundleError::Damaged { .. }
            | BundleError::Empty => Self::new(422, "Not a bundle", chain(&error).to_string()),
            BundleError::Objects(_) | BundleError::Write(_) | BundleError::Stopped => {
                tracing::error!(error = %chain(&error), "A bundle could not be kept or read.");
                Self::new(503, "Try again later", "the store of bundles cannot do this now")
            }
        }
    }
}
