//! The pages in a real Chromium: what an operator sees, reads, types and hears.
//!
//! Screenshots of every page are stored under `target/tmp/pages`.

mod accessible;
mod board;
mod logs;
mod looks;
mod node;
mod waves;

use std::path::PathBuf;

use landfall_model::report::{Report, State};
use landfall_model::{Confidence, Phase};
use landfall_testkit::Browser;

use crate::bed::{TestHub, bundle, envelope, failed, no_dns, on_postgres, running, succeeded};

/// All pages of an operator, for a hub created by [`wrecked`].
const PAGES: &[(&str, &str)] = &[
    ("fleet", "/"),
    ("fleet-filtered", "/?cause=dns-resolution-failure"),
    ("node", "/nodes/worker-000"),
    ("forget", "/nodes/worker-000/forget"),
    ("causes", "/causes"),
    ("roles", "/roles"),
    ("waves", "/waves"),
    ("wave", "/waves/worker-150"),
    ("search", "/search?q=10.0.0.2"),
    ("login", "/login"),
    ("problem", "/nodes/nobody"),
];

/// A line that would run a script if any page inserted it as markup.
pub(crate) const HOSTILE: &str =
    "</pre><script>alert(1)</script><img src=x onerror=alert(2)>\" onfocus=alert(3) autofocus=\"";

/// Starts a hub with 200 machines, about half of which failed.
pub(crate) fn wrecked() -> TestHub {
    let hub = TestHub::start();
    let mut machines: Vec<(String, Report)> = Vec::new();
    for number in 0..63 {
        machines.push((format!("worker-{number:03}"), in_context(no_dns())));
    }
    for number in 63..86 {
        let line = "[ERROR Swap]: running with swap on is not supported. Please disable swap";
        machines.push((format!("worker-{number:03}"), failed("swap-enabled", "Swap is on", line)));
    }
    for number in 86..92 {
        let title = format!("The image `registry.corp/pause:{number}` may not be pulled");
        let line = "failed to authorize: failed to fetch anonymous token: 401 Unauthorized";
        machines.push((format!("worker-{number:03}"), failed("image-pull-auth", &title, line)));
    }
    for number in 92..97 {
        machines.push((format!("worker-{number:03}"), hung()));
    }
    for number in 97..150 {
        machines.push((format!("worker-{number:03}"), running()));
    }
    for number in 150..197 {
        machines.push((format!("worker-{number:03}"), succeeded()));
    }
    for number in 0..3 {
        machines.push((format!("control-plane-{number}.eu-central-1.compute.internal"), undecided()));
    }
    let body: String = machines
        .into_iter()
        .map(|(name, report)| serde_json::to_string(&envelope(&name, 1, report)).unwrap() + "\n")
        .collect();
    let kind = [("content-type", "application/x-ndjson")];
    let answer = hub.request("POST", "/api/v1/reports", &kind, body.as_bytes());
    assert_eq!(answer.status, 200, "{answer:?}");
    waves::begin(&hub);
    hub
}

/// Adds surrounding lines, a consequence and a past finding to the evidence.
fn in_context(mut report: Report) -> Report {
    let evidence = &mut report.findings[0].evidence[0];
    "no such host".clone_into(&mut evidence.focus);
    evidence.before =
        vec!["error execution phase preflight: couldn't validate the identity of the API Server".into()];
    evidence.after = vec!["To see the stack trace of this error execute with --v=5 or higher".into()];
    evidence.count = 17;
    let mut follows =
        failed("apiserver-unreachable", "The API server cannot be reached", "i/o timeout").findings;
    let mut over = failed("clock-skew", "The clock was wrong", "certificate is not yet valid").findings;
    report.findings[0].explains = vec![follows[0].cause.clone()];
    over[0].confidence = Confidence::NONE;
    over[0].ruled_out = Some("chronyd set the clock later".to_owned());
    report.findings.append(&mut follows);
    report.findings.append(&mut over);
    report
}

fn hung() -> Report {
    let mut report = failed("stage-hung", "cloud-init does not end", "Waiting for network configuration");
    report.verdict.state = State::Hung;
    report.verdict.phase = Some(Phase::CloudInit);
    report
}

fn undecided() -> Report {
    let mut report = running();
    report.verdict.state = State::Unknown;
    "The evidence does not decide".clone_into(&mut report.verdict.title);
    report.last_seen = no_dns().findings.remove(0).evidence.pop();
    report.next_steps = vec!["Look at the journal of `kubelet`.".to_owned()];
    report
}

/// Stores a bundle of this node whose kubelet log has the evidence in line 42.
pub(crate) fn with_bundle(hub: &TestHub, node: &str) {
    let lines: Vec<String> = (1..=200)
        .map(|number| match number {
            42 => "dial tcp: lookup api.corp on 10.0.0.2:53: no such host".to_owned(),
            43 => HOSTILE.to_owned(),
            _ => {
                format!("2026-01-02T03:05:{:02}Z kubelet[812]: line {number} of an ordinary day", number % 60)
            }
        })
        .collect();
    let kind = [("content-type", "application/gzip")];
    let path = format!("/api/v1/nodes/{node}/bundles");
    let answer = hub.request("POST", &path, &kind, &bundle(node, &lines));
    assert_eq!(answer.status, 200, "{answer:?}");
}

pub(crate) fn url(hub: &TestHub, path: &str) -> String {
    format!("http://{}{path}", hub.address)
}

pub(crate) fn picture(name: &str) -> PathBuf {
    let folder = if on_postgres() { "pages-on-postgres" } else { "pages" };
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(folder).join(name)
}

/// Asserts that no inserted markup ran and that the content security policy blocked nothing.
#[track_caller]
pub(crate) fn nothing_ran(browser: &mut Browser) {
    let odd: Vec<_> = browser
        .events()
        .iter()
        .filter(|event| match event.method.as_str() {
            "Page.javascriptDialogOpening" | "Runtime.exceptionThrown" => true,
            "Log.entryAdded" => event.parameters["entry"]["source"] == "security",
            _ => false,
        })
        .collect();
    assert!(odd.is_empty(), "{odd:?}");
}
