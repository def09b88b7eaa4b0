//! A simulated node with low overhead: only the ID, the time and the signature of its reports are computed.

use std::rc::Rc;

use anyhow::Result;
use jiff::Timestamp;
use landfall_model::envelope::ReportId;
use landfall_pki::SigningKey;
use serde_json::{Value, json};

/// Number of equal reports before a node's verdict changes. A failing node fails with the last of its first ones.
pub(crate) const UNCHANGED: u64 = 20;
/// One of this many nodes fails eventually.
const FAILING: usize = 20;
/// Number of evidence lines of a failure.
const EVIDENCE: usize = 24;

/// The reports as JSON.
pub(crate) struct Bodies {
    /// Bodies of running nodes, and of those that succeeded.
    good: Vec<String>,
    /// Bodies of failed nodes, one per cause.
    failed: Vec<String>,
}

pub(crate) struct Node {
    number: usize,
    identity: String,
    key: SigningKey,
    sequence: u64,
    is_known: bool,
    bodies: Rc<Bodies>,
}

/// A signed report.
pub(crate) struct Report {
    pub(crate) id: ReportId,
    pub(crate) json: Vec<u8>,
    /// Whether it is the first report of its node.
    pub(crate) first: bool,
}

// === impl Bodies ===

impl Bodies {
    pub(crate) fn new() -> Self {
        let phases = ["kernel", "cloud-init", "runtime", "join", "ready"];
        let good = phases.iter().enumerate().map(|(at, phase)| {
            let state = if *phase == "ready" { "succeeded" } else { "running" };
            body(state, None, &format!("In phase {phase}"), phase, &phases[..=at], 0)
        });
        let causes = ["dns-resolution-failure", "disk-full", "clock-skew", "image-registry-unreachable"];
        let failed = causes.iter().map(|cause| {
            let title = format!("It failed: {cause}");
            body("failed", Some(cause), &title, "join", &phases[..4], EVIDENCE)
        });
        Self { good: good.collect(), failed: failed.collect() }
    }
}

fn body(
    state: &str,
    cause: Option<&str>,
    title: &str,
    phase: &str,
    phases: &[&str],
    evidence: usize,
) -> String {
    let timeline: Vec<Value> = phases
        .iter()
        .map(|phase| json!({"phase": phase, "started": "2026-01-02T03:04:05Z", "ended": "2026-01-02T03:05:05Z", "outcome": "ok"}))
        .collect();
    let sources: Vec<Value> = ["kubelet.log", "cloud-init-output.log", "containerd.log", "kernel.log"]
        .iter()
        .map(|name| json!({"name": name, "kind": "journal-text", "bytes": 123_456, "lines": 1789, "first": null, "last": null, "error": null}))
        .collect();
    let lines: Vec<Value> = (0..evidence)
        .map(|line| {
            let text = format!("E0102 03:04:05.123456    1234 kubelet.go:{line}] \"Unable to register node\" err=\"dial tcp: lookup api.corp on 10.0.0.2:53: no such host\" attempt={line}");
            json!({"source": "bootstrap/journals/kubelet.log", "line": 40 + line, "time": null, "text": text, "focus": "", "before": [], "after": [], "count": 1})
        })
        .collect();
    let findings: Vec<Value> = cause
        .iter()
        .map(|cause| {
            json!({
                "cause": cause, "title": title, "root": true, "confidence": 0.95, "class": "retryable", "explains": [],
                "evidence": lines, "nodes": [], "ruledOut": null, "fix": "Mend it.", "reference": format!("docs/causes/{cause}.md")
            })
        })
        .collect();
    let confidence = if cause.is_some() { 0.95 } else { 0.0 };
    let report = json!({
        "format": 1,
        "verdict": {"state": state, "cause": cause, "title": title, "component": null, "phase": phase, "confidence": confidence},
        "findings": findings, "timeline": timeline, "sources": sources, "lastSeen": null, "nextSteps": [], "reasoning": null
    });
    report.to_string()
}

// === impl Node ===

impl Node {
    /// Creates a node that has already counted this many reports, none of which the hub has received.
    pub(crate) fn new(number: usize, made: u64, bodies: Rc<Bodies>) -> Result<Self> {
        let (key, _) = SigningKey::generate()?;
        let identity = json!({
            "hostname": format!("node-{number:06}"), "machineId": format!("{number:032x}"),
            "bootId": format!("00000000-0000-4000-8000-{number:012x}"), "os": "Debian GNU/Linux 12 (bookworm)", "architecture": "x86_64"
        });
        let identity = identity.to_string();
        Ok(Self { number, identity, key, sequence: made, is_known: false, bodies })
    }

    /// Returns the next report.
    pub(crate) fn report(&mut self) -> Result<Report> {
        self.sequence += 1;
        let mut random = [0; 10];
        getrandom::fill(&mut random)?;
        let now = Timestamp::now();
        let id = ReportId::new(now, random);
        let (identity, sequence, body) = (&self.identity, self.sequence, self.body());
        let message = format!(
            "{{\"id\":\"{id}\",\"node\":{identity},\"sequence\":{sequence},\"time\":\"{now}\",\"report\":{body}}}"
        );
        let json = serde_json::to_vec(&self.key.seal(message.into_bytes()))?;
        let first = !std::mem::replace(&mut self.is_known, true);
        Ok(Report { id, json, first })
    }

    fn body(&self) -> &str {
        // Offsets the changes by node, so that their rate is constant.
        let step = (self.sequence + self.number as u64 % UNCHANGED) / UNCHANGED;
        let step = usize::try_from(step).unwrap_or(usize::MAX);
        let last = self.bodies.good.len() - 1;
        if self.number.is_multiple_of(FAILING) && step >= 1 {
            &self.bodies.failed[self.number / FAILING % self.bodies.failed.len()]
        } else {
            &self.bodies.good[step.min(last)]
        }
    }
}
