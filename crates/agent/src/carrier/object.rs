//! A carrier that writes the verdict into the node's `BootstrapReport` object of the management cluster.
//!
//! It writes the verdict only: the object has no field for log lines, and etcd must not store reports.

use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper::Method;
use landfall_model::envelope::{ReportId, ReportMessage};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::line::{Errand, HubError, Line, PushError, Sent};
use super::{Carrier, CarryError, message, runtime};

const RESOURCE: &str = "apis/landfall.dev/v1alpha1";
/// Time from the dial to the end of the response.
const PATIENCE: Duration = Duration::from_secs(20);
/// Limits of the object's schema.
const MAX_TITLE: usize = 200;
const MAX_COMPONENT: usize = 64;
/// The maximum length of an object name.
const MAX_NAME: usize = 253;

/// A carrier to a `BootstrapReport`, with the agent's credentials for the API server.
#[expect(missing_debug_implementations, reason = "holds the way to a token")]
pub struct BootstrapReport {
    server: Line,
    path: String,
    runtime: Runtime,
}

// === impl BootstrapReport ===

impl BootstrapReport {
    /// Creates a carrier. `object` is `NAMESPACE/NAME`; `server` is the URL of the API server as in a
    /// kubeconfig.
    pub fn new(server: &str, authority: &Path, token: PathBuf, object: &str) -> Result<Self, HubError> {
        let invalid = || HubError::Object(object.to_owned());
        let (namespace, name) = object.split_once('/').ok_or_else(invalid)?;
        if !is_name(namespace) || !is_name(name) {
            return Err(invalid());
        }
        let path = format!("/{RESOURCE}/namespaces/{namespace}/bootstrapreports/{name}/status");
        let server = Line::new(server, Some(authority), Some(token), None)?;
        Ok(Self { server, path, runtime: runtime().map_err(HubError::Network)? })
    }
}

impl Carrier for BootstrapReport {
    fn name(&self) -> &'static str {
        "bootstrap-report"
    }

    /// Every fourth heartbeat: each is a write into etcd. A controller treats a machine as silent after ten
    /// minutes.
    fn beats(&self) -> Option<u64> {
        Some(4)
    }

    fn carry(&mut self, _: ReportId, envelope: &[u8]) -> Result<(), CarryError> {
        let patch = status(&message(envelope)?).to_string();
        let errand = Errand {
            method: Method::PATCH,
            path: &self.path,
            kind: "application/merge-patch+json",
            header: None,
            body: Sent::Bytes(patch.as_bytes()),
            patience: PATIENCE,
        };
        self.runtime.block_on(self.server.run(&errand)).map_err(PushError::judged)
    }
}

/// Returns the merge patch. It clears every field that the verdict does not set, so that no older value
/// remains.
fn status(message: &ReportMessage) -> Value {
    let verdict = &message.report.verdict;
    json!({"status": {
        "state": verdict.state.name(),
        "trust": verdict.trust.name(),
        "cause": verdict.cause.as_ref().map(landfall_model::Cause::as_str),
        "title": line(&verdict.title, MAX_TITLE),
        "component": verdict.component.as_ref().map(|component| line(component, MAX_COMPONENT)),
        "phase": verdict.phase.map(landfall_model::Phase::name),
        "confidence": verdict.confidence.value(),
        "time": message.time.to_string(),
    }})
}

fn line(text: &str, limit: usize) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(limit).collect()
}

fn is_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    name.len() <= MAX_NAME
        && name.bytes().all(plain)
        && name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests {
    use landfall_diagnose::{Engine, RuleSet};
    use landfall_model::identity::NodeIdentity;
    use landfall_model::report::Trust;

    use super::*;

    #[test]
    fn a_verdict_is_one_line_and_names_nothing_it_does_not_know() {
        let mut report = Engine::new(RuleSet::embedded().unwrap()).unwrap().open().finish();
        report.verdict.trust = Trust::Proven;
        report.verdict.title = format!("broken\u{1b}[2J\n{}", "x".repeat(500));
        let message = ReportMessage {
            id: ReportId::new(jiff::Timestamp::UNIX_EPOCH, [0; 10]),
            node: NodeIdentity {
                hostname: "n1".to_owned(),
                machine_id: None,
                boot_id: None,
                os: None,
                architecture: None,
                provider_id: None,
            },
            boot_number: None,
            sequence: 1,
            time: jiff::Timestamp::UNIX_EPOCH,
            report,
        };
        let status = &status(&message)["status"];
        assert_eq!((&status["cause"], status["time"].as_str()), (&Value::Null, Some("1970-01-01T00:00:00Z")));
        assert_eq!(status["trust"], "proven");
        let title = status["title"].as_str().unwrap();
        assert!(title.chars().count() == MAX_TITLE && !title.chars().any(char::is_control), "{title}");
    }

    #[test]
    fn an_object_is_named_by_namespace_and_name() {
        let new = |server: &str, object: &str| {
            BootstrapReport::new(server, Path::new("/nonexistent"), "token".into(), object).map(drop)
        };
        for bad in ["", "x", "/x", "x/", "a/b/c", "a/../b", "A/b", "a/b?x"] {
            assert!(matches!(new("https://x:6443", bad), Err(HubError::Object(_))), "{bad:?}");
        }
        assert!(matches!(new("http://x", "a/b"), Err(HubError::Address(_))), "a token in the clear");
        assert!(new("https://x:6443", "a/b").is_ok(), "files are read when they are needed");
    }
}
