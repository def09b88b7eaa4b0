//! The page of in-place bootstraps.

use landfall_model::in_place::{Progress, State};
use landfall_testkit::{Browser, have};

use super::{picture, url, wrecked};
use crate::bed::TestHub;

/// Adds 40 machines with an in-place bootstrap: most succeeded, some are in progress, seven failed for two reasons.
pub(super) fn begin(hub: &TestHub) {
    let full = || State::Failed {
        reason: "`/boot` has 12 MiB left, 80 are needed".to_owned(),
        step: "preflight".to_owned(),
        retryable: true,
    };
    let back =
        || State::RolledBack { reason: "the new kernel does not boot".to_owned(), step: "verify".to_owned() };
    for number in 0..40 {
        let name = format!("worker-{:03}", 150 + number);
        let states = match number {
            0..5 => vec![State::Claimed, State::Preflight, full()],
            5..7 => vec![State::Claimed, State::Preflight, State::Staged, back()],
            7..15 => vec![State::Claimed, State::Preflight, State::Staged, State::Rebooting],
            15..18 => vec![State::Claimed],
            _ => vec![State::Claimed, State::Done],
        };
        for (sequence, state) in states.into_iter().enumerate() {
            let event = Progress {
                attempt: "a1".to_owned(),
                sequence: sequence as u64 + 1,
                time: jiff::Timestamp::now(),
                boot_id: "b1".to_owned(),
                state,
                step: None,
            };
            let body = serde_json::to_vec(&event).unwrap();
            let answer = hub.request("POST", &format!("/api/v1/nodes/{name}/progress"), &[], &body);
            assert_eq!(answer.status, 200, "{answer:?}");
        }
    }
}

#[test]
fn a_wave_is_told_by_its_numbers_and_its_reasons() {
    if !have(Browser::NEEDS) {
        return;
    }
    let hub = wrecked();
    let mut browser = Browser::start().unwrap();
    browser.open(&url(&hub, "/waves")).unwrap();
    browser.screenshot(&picture("waves.png")).unwrap();
    let text = |browser: &mut Browser, expression: &str| browser.text(expression).unwrap();
    assert_eq!(
        text(&mut browser, "document.querySelector('h1').innerText"),
        "22 of 40 machines done, 5 failed, 2 rolled back, 11 in progress"
    );
    let reasons = text(
        &mut browser,
        "[...document.querySelectorAll('.group')].map(g => g.querySelector('.count b').innerText + ' ' + \
         g.querySelector('.title').innerText).join('; ')",
    );
    assert_eq!(reasons, "5 /boot has 12 MiB left, 80 are needed; 2 the new kernel does not boot");
    browser.click(".nodes th a").unwrap();
    browser.until("location.pathname === '/waves/worker-150' && document.readyState === 'complete'").unwrap();
    browser.screenshot(&picture("wave.png")).unwrap();
    let stages = text(
        &mut browser,
        "[...document.querySelectorAll('.history .state')].map(s => s.innerText).join(' ')",
    );
    assert_eq!(stages, "claimed preflight failed");

    // A later event appears without reloading the page.
    browser.evaluate("window.untouched = true").unwrap();
    let again = Progress {
        attempt: "a2".to_owned(),
        sequence: 1,
        time: jiff::Timestamp::now(),
        boot_id: "b1".to_owned(),
        state: State::Claimed,
        step: None,
    };
    let body = serde_json::to_vec(&again).unwrap();
    assert_eq!(hub.request("POST", "/api/v1/nodes/worker-150/progress", &[], &body).status, 200);
    browser.until("document.querySelector('.verdict .facts').innerText.includes('a2')").unwrap();
    assert_eq!(browser.evaluate("window.untouched").unwrap(), true, "the page was loaded again");
}
