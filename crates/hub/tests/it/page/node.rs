//! The page of one node: its verdict, the evidence in context, consequences, past findings and progress.

use landfall_testkit::{Browser, have};

use super::{HOSTILE, nothing_ran, picture, url, with_bundle, wrecked};
use crate::bed::{TestHub, envelope, failed};

#[test]
fn a_node_tells_its_verdict_with_the_proof_in_context() {
    if !have(Browser::NEEDS) {
        return;
    }
    let hub = wrecked();
    with_bundle(&hub, "worker-000");
    let mut browser = Browser::start().unwrap();
    browser.open(&url(&hub, "/nodes/worker-000")).unwrap();
    browser.screenshot(&picture("node.png")).unwrap();
    let text = |browser: &mut Browser, place: &str| {
        browser.text(&format!("document.querySelector({place:?}).innerText")).unwrap()
    };
    assert_eq!(text(&mut browser, ".verdict h2"), "The name api.corp cannot be resolved");
    assert_eq!(text(&mut browser, ".verdict h2 code"), "api.corp");
    assert!(text(&mut browser, ".verdict .fix").contains("/etc/resolv.conf"));
    assert_eq!(text(&mut browser, ".evidence mark"), "no such host");
    let proof = text(&mut browser, ".evidence pre");
    let lines: Vec<&str> = proof.lines().collect();
    assert!(
        lines[0].starts_with("error execution phase") && lines[2].starts_with("To see the stack"),
        "{proof}"
    );
    assert!(text(&mut browser, ".evidence figcaption").contains("17 such lines"));
    let page = browser.text("document.querySelector('main').textContent").unwrap();
    for part in [
        "Follows from it",
        "The API server cannot be reached",
        "Ruled out",
        "chronyd set the clock later",
        "activating (auto-restart)",
        "no answer to `api.corp`",
    ] {
        assert!(page.contains(part), "`{part}` is not on the page: {page}");
    }
    // The chart: each phase to scale, the failed one last.
    let bars = browser.text(
        "[...document.querySelectorAll('.timeline li')].map(l => l.innerText.split('\\n')[0]).join(' ')",
    );
    assert_eq!(bars.unwrap(), "kernel cloud-init join");
    assert_eq!(browser.evaluate("document.querySelectorAll('.timeline rect.failed').length").unwrap(), 1);

    // If the evidence is insufficient, the page shows the last findings and the next steps.
    browser.open(&url(&hub, "/nodes/control-plane-0.eu-central-1.compute.internal")).unwrap();
    browser.screenshot(&picture("node-undecided.png")).unwrap();
    let page = text(&mut browser, "main");
    for part in ["Seen last", "no such host", "What to do next", "Look at the journal of kubelet."] {
        assert!(page.contains(part), "`{part}` is not on the page: {page}");
    }
}

#[test]
fn scripts_in_what_a_node_says_stay_text() {
    if !have(Browser::NEEDS) {
        return;
    }
    let hub = TestHub::start();
    let mut report = failed("dns-resolution-failure", HOSTILE, HOSTILE);
    report.findings[0].evidence[0].focus = "<script>alert(1)</script>".to_owned();
    report.findings[0].fix = HOSTILE.to_owned();
    report.verdict.component = Some(HOSTILE.to_owned());
    let mut envelope = envelope("worker-1", 1, report);
    envelope.node.os = Some(HOSTILE.to_owned());
    hub.stored(&envelope);
    with_bundle(&hub, "worker-1");
    let digest = hub.json("/api/v1/nodes/worker-1")["bundles"][0]["digest"].as_str().unwrap().to_owned();
    let log = format!("/logs/{digest}?path=bootstrap/journals/kubelet.log");
    let mut browser = Browser::start().unwrap();
    for path in [
        "/",
        "/nodes/worker-1",
        "/causes",
        "/search?q=onerror",
        "/search?q=%3Cscript%3Ealert(1)%3C/script%3E",
        &log,
    ] {
        browser.open(&url(&hub, path)).unwrap();
        let strangers = browser
            .evaluate("document.querySelectorAll('main script, main img, [onfocus], [onerror]').length");
        assert_eq!(strangers.unwrap(), 0, "{path}");
    }
    // The policy also applies to the page's own document: added inline scripts do not run.
    nothing_ran(&mut browser);
    browser
        .evaluate("document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.ran = 1'}))")
        .unwrap();
    assert_eq!(browser.text("typeof window.ran").unwrap(), "undefined");
}

/// A click, a confirmation page, and another click; no script is involved.
#[test]
fn an_operator_has_a_node_forgotten() {
    if !have(Browser::NEEDS) {
        return;
    }
    let hub = TestHub::start();
    hub.stored(&envelope("worker-1", 1, failed("disk-full", "The disk is full", "no space left")));
    hub.stored(&envelope("worker-2", 1, failed("disk-full", "The disk is full", "no space left")));
    with_bundle(&hub, "worker-1");
    let mut browser = Browser::start().unwrap();
    browser.scripts(false).unwrap();
    browser.open(&url(&hub, "/nodes/worker-1")).unwrap();
    browser.click(".sure button").unwrap();
    browser
        .until("location.pathname === '/nodes/worker-1/forget' && document.readyState === 'complete'")
        .unwrap();
    browser.screenshot(&picture("forget.png")).unwrap();
    let asked = browser.text("document.querySelector('main').innerText").unwrap();
    assert!(
        asked.contains("Forget worker-1?") && asked.contains("1 report and 1 bundle are deleted"),
        "{asked}"
    );
    assert_eq!(hub.get("/nodes/worker-1").status, 200, "asking changes nothing");
    browser.click(".sure .danger").unwrap();
    browser.until("location.pathname === '/' && document.readyState === 'complete'").unwrap();
    assert_eq!(
        browser.text("document.querySelector('h1').innerText").unwrap(),
        "1 of 1 node is in trouble: 1 cause"
    );
    assert_eq!(hub.get("/nodes/worker-1").status, 404);
    nothing_ran(&mut browser);
}
