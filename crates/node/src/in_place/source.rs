//! Downloads the new configuration of the machine, once, because a one-time password can be used only once.
//!
//! The download of the preflight is the one that is applied.
//!
//! Servers differ in whether a truncated answer uses up the password. Therefore the first use of the password is
//! recorded before it is sent. A truncated download is resumed as long as the server still sends the same content. If
//! a server then rejects the password, the password is used up: only a new Secret helps, not a retry.

use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use jiff::fmt::rfc2822;
use landfall_durable::{self as durable, Access};
use landfall_fetch::{Begin, Exchange, FetchError};
use landfall_model::chain;
use landfall_steps::{BootId, BootIdError};

use crate::environment::{make_dir, write};
use crate::in_place::credentials::{Credentials, Source};
use crate::in_place::environment::{InPlaceEnvironment, TrustRoots};
use crate::in_place::ignition;
use crate::in_place::oci;
use crate::in_place::payload;
use crate::in_place::places::Folder;

/// The server builds the payload during the request.
const WITHIN: Duration = Duration::from_mins(5);
/// Number of truncated downloads that one process resumes.
const MAX_CUTS: u32 = 4;
/// The format that servers of Ignition configurations serve.
const ACCEPT: &str = "application/vnd.coreos.ignition+json;version=3.2.0, */*;q=0.1";

/// Result of a download.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Got {
    pub path: PathBuf,
    /// The server's clock; `None` when an earlier process downloaded it.
    pub server_time: Option<Timestamp>,
}

#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    #[error("cannot prepare a place for the download")]
    Place(#[source] durable::Error),
    #[error("cannot tell which boot this is")]
    Boot(#[source] BootIdError),
    #[error("cannot look for an earlier download")]
    Look(#[source] std::io::Error),
    #[error("`ca_cert` of the Secret contains no usable certificate")]
    Authority,
    #[error("cannot reach {what} at `{url}`")]
    Reach {
        what: &'static str,
        url: String,
        #[source]
        source: FetchError,
    },
    #[error(
        "the one-time password is spent: an earlier download with it was cut off, and `{url}` answered {status} to the next; \
         put a new password into the Secret"
    )]
    Spent { url: String, status: u16 },
    #[error("{what} at `{url}` answered {status}{hint}")]
    Status { what: &'static str, url: String, status: u16, hint: &'static str },
}

// === impl SourceError ===

impl SourceError {
    /// Returns whether a retry with the same Secret may succeed.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Spent { .. } | Self::Authority => false,
            Self::Status { status, .. } => !matches!(status, 400 | 401 | 403 | 404 | 410),
            _ => true,
        }
    }
}

/// Downloads the source, unless an earlier process has.
pub async fn get(
    env: &impl InPlaceEnvironment,
    credentials: &Credentials,
    folder: &Folder,
) -> Result<Got, SourceError> {
    let (what, url, target, trust, mut question) = match &credentials.source {
        Source::Ignition { url, token, authorities } => {
            let question = Exchange::get(url.as_str(), WITHIN, ignition::MAX_BYTES)
                .header("authorization", token.expose().clone())
                .header("accept", ACCEPT);
            ("the Ignition endpoint", url, folder.ignition(), TrustRoots::Only(authorities.clone()), question)
        }
        Source::Payload { url, password, worker, cluster, region, authorities } => {
            let query = format!(
                "{}workerid={}&clusterid={}",
                if url.contains('?') { '&' } else { '?' },
                oci::escape(worker),
                oci::escape(cluster)
            );
            let question = Exchange::get(format!("{url}{query}"), WITHIN, payload::MAX_BYTES)
                .header("x-one-time-password", password.expose().clone())
                .header("x-region", region.as_str())
                .header("cache-control", "no-store");
            let trust = authorities.clone().map_or(TrustRoots::System, TrustRoots::Only);
            ("the bootstrap endpoint", url, folder.payload(), trust, question)
        }
    };
    question.begin = Begin::WhereCut;
    if env.exists(&target).map_err(SourceError::Look)? {
        return Ok(Got { path: target, server_time: None });
    }
    make_dir(env, folder.path(), Access::PRIVATE_DIR).map_err(SourceError::Place)?;
    let part = part_of(&target, &env.boot().map_err(SourceError::Boot)?);
    let is_once = matches!(credentials.source, Source::Payload { .. });
    let mut was_asked = is_once && env.exists(&folder.asked()).map_err(SourceError::Look)?;
    if is_once && !was_asked {
        write(env, &folder.asked(), b"", Access::PRIVATE).map_err(SourceError::Place)?;
    }
    let mut cuts = 0;
    let saved = loop {
        match env.download(&trust, &question, &env.host_path(&part)).await {
            // Resume now rather than at the next start: the password may be valid for some minutes only.
            Err(error) if cuts < MAX_CUTS && !error.is_lasting() && !error.is_unreached() => {
                tracing::info!(error = %chain(&error), "download interrupted; resuming");
                (cuts, was_asked) = (cuts + 1, is_once);
            }
            saved => break saved,
        }
    };
    if !was_asked && saved.as_ref().is_err_and(FetchError::is_unreached) {
        // The server was not reached, so the password was not sent.
        env.remove_all(&folder.asked()).map_err(SourceError::Look)?;
    }
    let saved = saved.map_err(|source| match source {
        FetchError::NoAuthority { .. } => SourceError::Authority,
        source => SourceError::Reach { what, url: url.clone(), source },
    })?;
    if saved.file.is_none() {
        let status = saved.answer.status;
        let is_refused = (400..500).contains(&status) && !matches!(status, 408 | 425 | 429);
        if was_asked && is_refused {
            return Err(SourceError::Spent { url: url.clone(), status });
        }
        let hint = match status {
            401 | 403 => ": the token is not valid, or was used before; a new Secret is needed",
            511 => ": it does not know the token yet",
            _ => "",
        };
        return Err(SourceError::Status { what, url: url.clone(), status, hint });
    }
    durable::publish(&*env.disk(), &env.host_path(&part), &env.host_path(&target))
        .map_err(SourceError::Place)?;
    let server_time = saved.answer.header("date").and_then(http_date);
    Ok(Got { path: target, server_time })
}

/// The partial file of this boot only: data written before a power failure may be corrupt on disk.
fn part_of(target: &Path, boot: &BootId) -> PathBuf {
    let mut name = target.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}", boot.as_str().get(..8).unwrap_or(boot.as_str())));
    target.with_file_name(name)
}

/// `Sun, 06 Nov 1994 08:49:37 GMT`.
fn http_date(text: &str) -> Option<Timestamp> {
    rfc2822::DateTimeParser::new().relaxed_weekday(true).parse_timestamp(text.trim()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_of_servers_are_read() {
        let read = http_date("Sun, 06 Nov 1994 08:49:37 GMT").unwrap();
        assert_eq!(read.to_string(), "1994-11-06T08:49:37Z");
        for odd in
            ["", "GMT", "Sun, 06 Nov GMT", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun, 06 Foo 1994 08:49:37 GMT"]
        {
            assert_eq!(http_date(odd), None, "{odd}");
        }
    }
}
