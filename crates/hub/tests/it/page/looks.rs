//! Dark, on a phone, on paper.

use landfall_testkit::{Browser, Theme, have};

use super::{PAGES, picture, url, with_bundle, wrecked};

/// What stands out to the right of the window.
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
        // What is folded on the screen is not folded on paper.
        let folded = browser
            .evaluate("[...document.querySelectorAll('details > :not(summary)')].filter(e => !e.checkVisibility()).length")
            .unwrap();
        assert_eq!(folded, 0, "{name}");
        browser.look(Theme::Light).unwrap();
    }
}
