//! The pages in dark mode, on a phone and on paper.

use landfall_testkit::{Browser, Theme, have};

use super::{PAGES, picture, url, with_bundle, wrecked};
use crate::bed::{TestHub, envelope, no_dns, running, succeeded};

/// Elements that extend beyond the right edge of the window.
const WIDE: &str = "[...document.querySelectorAll('body *')].filter(e => e.getBoundingClientRect().right > innerWidth + 1 && !e.closest('.hidden, thead, svg')) \
                    .map(e => e.tagName + '.' + e.className + ' ' + e.getBoundingClientRect().right).slice(0, 5).join('; ')";
const PHONE: (u32, u32) = (390, 844);

#[test]
fn every_page_fits_a_phone_in_both_themes() {
    if !have(Browser::NEEDS) {
        return;
    }
    let hub = wrecked();
    with_bundle(&hub, "worker-000");
    let digest = hub.json("/api/v1/nodes/worker-000")["bundles"][0]["digest"].as_str().unwrap().to_owned();
    let log = format!("/logs/{digest}?path=bootstrap/journals/kubelet.log");
    let files = format!("/logs/{digest}");
    let mut pages = PAGES.to_vec();
    pages.extend([("log", log.as_str()), ("log-files", files.as_str())]);
    let mut browser = Browser::start().unwrap();
    for (name, path) in pages {
        browser.size(PHONE.0, PHONE.1).unwrap();
        browser.look(Theme::Light).unwrap();
        browser.open(&url(&hub, path)).unwrap();
        browser.screenshot(&picture(&format!("{name}-phone.png"))).unwrap();
        let wide = browser.text(WIDE).unwrap();
        assert_eq!(
            browser.evaluate("document.documentElement.scrollWidth").unwrap(),
            PHONE.0,
            "{name}: {wide}"
        );
        assert_eq!(wide, "", "{name}");
        browser.size(1280, 900).unwrap();
        browser.look(Theme::Dark).unwrap();
        browser.screenshot(&picture(&format!("{name}-dark.png"))).unwrap();
        let paper = browser.text("getComputedStyle(document.body).backgroundColor").unwrap();
        assert_eq!(paper, "rgb(20, 23, 26)", "{name} is not dark");
    }
}

#[test]
fn a_printed_page_has_what_matters_and_nothing_to_click() {
    if !have(Browser::NEEDS) {
        return;
    }
    let hub = wrecked();
    let mut browser = Browser::start().unwrap();
    browser.size(794, 1123).unwrap();
    for (name, path) in [("fleet", "/"), ("node", "/nodes/worker-000")] {
        browser.open(&url(&hub, path)).unwrap();
        browser.print(&picture(&format!("{name}.pdf"))).unwrap();
        assert!(std::fs::read(picture(&format!("{name}.pdf"))).unwrap().starts_with(b"%PDF"));
        browser.on_paper().unwrap();
        browser.screenshot(&picture(&format!("{name}-paper.png"))).unwrap();
        let shown = browser
            .text("[...document.querySelectorAll('form, button, .top nav, .live, .foot')].filter(e => e.checkVisibility()).map(e => e.className).join(' ')")
            .unwrap();
        assert_eq!(shown, "", "{name} prints what is of no use on paper");
        // Elements that are folded on the screen are unfolded on paper.
        let folded = browser
            .evaluate("[...document.querySelectorAll('details > :not(summary)')].filter(e => !e.checkVisibility()).length")
            .unwrap();
        assert_eq!(folded, 0, "{name}");
        browser.look(Theme::Light).unwrap();
    }
}

/// After three missing reports, pages show since when a node has been silent, unless it succeeded.
#[test]
fn silence_is_told_in_words() {
    if !have(Browser::NEEDS) {
        return;
    }
    let hub = TestHub::start();
    hub.stored(&envelope("worker-1", 1, running()));
    hub.stored(&envelope("worker-2", 1, no_dns()));
    hub.stored(&envelope("worker-3", 1, succeeded()));
    hub.stored(&envelope("worker-4", 1, running()));
    let store = rusqlite::Connection::open(hub.folder.path().join("hub.db")).unwrap();
    let ago = "UPDATE pulses SET last_seen = last_seen - 420000000 \
               WHERE node IN (SELECT id FROM nodes WHERE name <> 'worker-4')";
    assert_eq!(store.execute(ago, []).unwrap(), 3);
    let mut browser = Browser::start().unwrap();
    browser.open(&url(&hub, "/")).unwrap();
    browser.screenshot(&picture("fleet-silent.png")).unwrap();
    let heard = browser.text(
        "[...document.querySelectorAll('.nodes tbody tr')].map(r => r.querySelector('th').innerText + ': ' + \
         r.lastElementChild.innerText).sort().join('; ')",
    );
    let heard = heard.unwrap();
    assert!(
        heard.starts_with(
            "worker-1: no report for 7 min; worker-2: no report for 7 min; worker-3: 7 min; worker-4: "
        ),
        "{heard}"
    );
    assert!(!heard.contains("worker-4: no report"), "{heard}");
    for (node, silent) in [("worker-2", true), ("worker-3", false)] {
        browser.open(&url(&hub, &format!("/nodes/{node}"))).unwrap();
        browser.screenshot(&picture(&format!("{node}-silent.png"))).unwrap();
        let page = browser.text("document.querySelector('main').innerText").unwrap();
        assert_eq!(page.contains("No report from this node for 7 min"), silent, "{page}");
    }
}
