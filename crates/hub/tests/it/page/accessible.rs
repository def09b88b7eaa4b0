//! Accessibility of the pages for users with impaired vision or without a mouse.
//!
//! The tests use Chromium's accessibility tree and its computed colors.

use landfall_testkit::{Accessible, Browser, Key, Theme, have};

use super::{PAGES, url, with_bundle, wrecked};

/// Roles of interactive elements; each needs a name.
const CONTROLS: &[&str] = &[
    "link",
    "button",
    "textbox",
    "searchbox",
    "combobox",
    "checkbox",
    "menuitem",
    "DisclosureTriangle",
    "summary",
];
/// Number of Tab stops tried on a page, more than any page has before the table of nodes.
const STOPS: usize = 25;

#[test]
fn every_page_can_be_heard() {
    if !have(Browser::NEEDS) {
        return;
    }
    let hub = wrecked();
    with_bundle(&hub, "worker-000");
    let digest = hub.json("/api/v1/nodes/worker-000")["bundles"][0]["digest"].as_str().unwrap().to_owned();
    let log = format!("/logs/{digest}?path=bootstrap/journals/kubelet.log");
    let mut pages = PAGES.to_vec();
    pages.push(("log", &log));
    let mut browser = Browser::start().unwrap();
    for (name, path) in pages {
        browser.open(&url(&hub, path)).unwrap();
        let tree = browser.accessible().unwrap();
        judge(name, &tree);
        assert_eq!(browser.text("document.documentElement.lang").unwrap(), "en", "{name}");
        assert!(browser.text("document.title").unwrap().ends_with("Landfall"), "{name}");
        let twice = browser.text(
            "(() => { const ids = [...document.querySelectorAll('[id]')].map(e => e.id); \
             return ids.filter((id, i) => ids.indexOf(id) !== i).join(' '); })()",
        );
        assert_eq!(twice.unwrap(), "", "{name} has ids twice");
        let lost = browser.text(
            "[...document.querySelectorAll('[aria-labelledby]')].map(e => e.getAttribute('aria-labelledby')) \
             .filter(id => !document.getElementById(id)).join(' ')",
        );
        assert_eq!(lost.unwrap(), "", "{name} names what is not there");
        let unscoped = browser.evaluate("document.querySelectorAll('th:not([scope])').length").unwrap();
        assert_eq!(unscoped, 0, "{name} has headings of tables that head nothing");
    }
}

fn judge(page: &str, tree: &[Accessible]) {
    let nameless: Vec<_> =
        tree.iter().filter(|one| CONTROLS.contains(&one.role.as_str()) && one.name.is_empty()).collect();
    assert!(nameless.is_empty(), "{page} has controls without a name: {nameless:?}");
    let pictures: Vec<_> = tree
        .iter()
        .filter(|one| matches!(one.role.as_str(), "image" | "img") && one.name.is_empty())
        .collect();
    assert!(pictures.is_empty(), "{page} has pictures without a name: {pictures:?}");
    let levels: Vec<u64> =
        tree.iter().filter(|one| one.role == "heading").filter_map(|one| one.level).collect();
    assert_eq!(levels.first(), Some(&1), "{page} begins with its heading: {levels:?}");
    assert_eq!(levels.iter().filter(|level| **level == 1).count(), 1, "{page} has one heading: {levels:?}");
    assert!(levels.windows(2).all(|pair| pair[1] <= pair[0] + 1), "{page} skips a level: {levels:?}");
    let has = |role: &str| tree.iter().filter(|one| one.role == role).count();
    assert_eq!((has("main"), has("banner"), has("contentinfo")), (1, 1, 1), "{page} lacks a landmark");
    if page != "login" {
        assert!(has("navigation") >= 1 && has("search") >= 1, "{page} lacks navigation");
    }
}

#[test]
fn every_text_stands_out_from_what_is_behind_it() {
    if !have(Browser::NEEDS) {
        return;
    }
    let hub = wrecked();
    with_bundle(&hub, "worker-000");
    let digest = hub.json("/api/v1/nodes/worker-000")["bundles"][0]["digest"].as_str().unwrap().to_owned();
    let log = format!("/logs/{digest}?path=bootstrap/journals/kubelet.log&mark=42");
    let mut pages = PAGES.to_vec();
    pages.push(("log", &log));
    let mut browser = Browser::start().unwrap();
    for (name, path) in pages {
        browser.open(&url(&hub, path)).unwrap();
        browser.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)").unwrap();
        for theme in [Theme::Light, Theme::Dark] {
            browser.look(theme).unwrap();
            let found = browser.evaluate(include_str!("contrast.js")).unwrap();
            assert!(found["seen"].as_u64().unwrap() > 2, "{name}: no text was looked at");
            assert_eq!(found["bad"], serde_json::json!([]), "{name} {theme:?}");
        }
    }
}

#[test]
fn whoever_has_no_mouse_sees_where_they_are() {
    if !have(Browser::NEEDS) {
        return;
    }
    let hub = wrecked();
    let mut browser = Browser::start().unwrap();
    for path in ["/", "/nodes/worker-000", "/causes"] {
        browser.open(&url(&hub, path)).unwrap();
        let mut last = String::new();
        for stop in 0..STOPS {
            browser.press(Key::Tab).unwrap();
            let here = browser.text("(() => { const e = document.activeElement, s = getComputedStyle(e), r = e.getBoundingClientRect(); return [e.tagName, s.outlineStyle, parseFloat(s.outlineWidth) >= 2, r.width > 0 && r.height > 0].join(' '); })()").unwrap();
            if here.starts_with("BODY") {
                break;
            }
            assert!(
                here.ends_with("solid true true"),
                "{path}: stop {stop} after {last} shows nothing: {here}"
            );
            last = here;
        }
        assert_ne!(last, "", "{path} has nothing to stop at");
    }
}
