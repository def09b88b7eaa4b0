//! Errors of operations on objects.

use std::fmt;
use std::io;
use std::path::PathBuf;

use crate::FetchError;

use super::answer::InvalidAnswer;
use super::credentials::CredentialsError;

#[derive(Debug, thiserror::Error)]
pub enum ObjectsError {
    #[error("cannot prepare the way to the object store")]
    Client(#[source] FetchError),
    #[error("cannot be known to the object store")]
    Credentials(#[source] CredentialsError),
    #[error(
        "refusing to send a token or a shared access signature to `{origin}`: `http://` is not encrypted"
    )]
    InTheClear { origin: String },
    #[error("cannot {doing} `{key}` in the bucket `{bucket}`")]
    Exchange {
        doing: &'static str,
        key: String,
        bucket: String,
        #[source]
        source: Box<FetchError>,
    },
    #[error("{0}")]
    Refused(Box<Refusal>),
    #[error("cannot read `{}` to store it", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("`{}` is not what it was said to be, and is not stored", path.display())]
    Changed { path: PathBuf },
    #[error("`{0}` cannot be the name of an object")]
    Key(String),
    #[error("cannot list the bucket `{bucket}`")]
    Listing {
        bucket: String,
        #[source]
        source: InvalidAnswer,
    },
}

/// A store's rejection, with its own code and message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub doing: &'static str,
    pub key: String,
    pub bucket: String,
    pub status: u16,
    /// Empty where the store sent none.
    pub code: String,
    pub message: String,
}

// === impl ObjectsError ===

impl ObjectsError {
    /// Returns whether an identical retry is useless.
    ///
    /// A missing permission may be granted, temporary keys are renewed, and a busy store recovers.
    pub fn is_lasting(&self) -> bool {
        match self {
            Self::Refused(refusal) => {
                matches!(refusal.status, 400 | 405 | 411 | 413 | 414) && !refusal.is_about_us()
            }
            Self::Key(_) | Self::Changed { .. } => true,
            _ => false,
        }
    }
}

// === impl Refusal ===

impl Refusal {
    /// Stores report some problems of the caller, not of the object, with status 400.
    fn is_about_us(&self) -> bool {
        matches!(
            self.code.as_str(),
            "RequestTimeout"
                | "ExpiredToken"
                | "InvalidToken"
                | "TokenRefreshRequired"
                | "AuthorizationHeaderMalformed"
                | "InvalidAuthenticationInfo"
        )
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { doing, key, bucket, status, code, message } = self;
        write!(f, "the object store does not {doing} `{key}` in the bucket `{bucket}`: {status}")?;
        if !code.is_empty() {
            write!(f, " {code}")?;
        }
        if !message.is_empty() {
            write!(f, ", {message}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Refusal {}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(status: u16, code: &str, message: &str) -> Refusal {
        Refusal {
            doing: "get",
            key: "a".to_owned(),
            bucket: "logs".to_owned(),
            status,
            code: code.to_owned(),
            message: message.to_owned(),
        }
    }

    #[test]
    fn a_refusal_says_what_there_is_to_say() {
        for (code, message, end) in [
            ("AccessDenied", "Access Denied.", "`logs`: 403 AccessDenied, Access Denied."),
            ("AuthenticationFailed", "", "`logs`: 403 AuthenticationFailed"),
            ("", "", "`logs`: 403"),
        ] {
            let said = refusal(403, code, message).to_string();
            assert!(said.ends_with(end), "{said}");
        }
    }

    #[test]
    fn what_is_given_up_is_what_would_never_do() {
        for (status, code, lasting) in [
            (400, "XAmzContentSHA256Mismatch", true),
            (400, "Md5Mismatch", true),
            (413, "RequestBodyTooLarge", true),
            (400, "ExpiredToken", false),
            (400, "InvalidAuthenticationInfo", false),
            (403, "AuthenticationFailed", false),
            (404, "ContainerNotFound", false),
            (503, "ServerBusy", false),
        ] {
            let error = ObjectsError::Refused(Box::new(refusal(status, code, "")));
            assert_eq!(error.is_lasting(), lasting, "{status} {code}");
        }
    }
}
