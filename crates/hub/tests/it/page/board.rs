//! The fleet view: overview, filters, keyboard navigation, live updates, and reading without scripts.

use landfall_testkit::{Browser, Key, have};

use super::{picture, url, wrecked};
use crate::bed::{TestHub, envelope, no_dns, running, succeeded};

const ROWS: &str = "document.querySelectorAll('.nodes tbody tr').length";
const FOCUS: &str = "document.activeElement.getAttribute('href') || document.activeElement.id";

#[test]
fn a_failed_fleet_is_told_in_the_first_screen() {
    if !have(Browser::NEEDS) {
        return;
    }
    let hub = wrecked();
    let mut browser = Browser::start().unwrap();
    browser.open(&url(&hub, "/")).unwrap();
    browser.screenshot(&picture("fleet.png")).unwrap();
    assert_eq!(
        browser.text("document.querySelector('h1').innerText").unwrap(),
        "97 of 200 nodes are in trouble: 4 causes"
    );
    // The largest groups are visible without scrolling: number of nodes, title, and a link to all of them.
    let seen = browser
        .text(
            "[...document.querySelectorAll('.group')].filter(g => g.getBoundingClientRect().bottom < innerHeight)
             .map(g => g.querySelector('.count b').innerText + ' ' + g.querySelector('.title').innerText).join('; ')",
        )
        .unwrap();
    let expected = "63 The name api.corp cannot be resolved; 23 Swap is on; \
                    6 The registry refuses the pull: no or wrong login; 5 cloud-init does not end";
    assert_eq!(seen, expected);

    // A click on a cause shows its nodes and the remedy.
    browser.click(".group > a").unwrap();
    browser
        .until("location.search === '?cause=dns-resolution-failure' && document.readyState === 'complete'")
        .unwrap();
    assert_eq!(browser.text("document.querySelector('#nodes').innerText").unwrap(), "63 of 200 nodes");
    assert_eq!(browser.evaluate(ROWS).unwrap(), 63);
    assert!(!browser.text("document.querySelector('.chosen-cause').innerText").unwrap().is_empty());
    browser.screenshot(&picture("fleet-cause.png")).unwrap();
}

#[test]
fn the_board_is_narrowed_down_and_walked_by_keyboard() {
    if !have(Browser::NEEDS) {
        return;
    }
    let hub = wrecked();
    let mut browser = Browser::start().unwrap();
    browser.open(&url(&hub, "/")).unwrap();

    // Filters: a state, then words in the name.
    browser.click(".legend a[href*=hung]").unwrap();
    browser.until("location.search === '?state=hung' && document.readyState === 'complete'").unwrap();
    assert_eq!(browser.evaluate(ROWS).unwrap(), 5);
    browser.evaluate("document.querySelector('.filter [name=q]').focus()").unwrap();
    browser.write("worker-094").unwrap();
    browser.press(Key::Enter).unwrap();
    browser.until("location.search.includes('q=worker-094') && document.readyState === 'complete'").unwrap();
    assert_eq!(browser.evaluate(ROWS).unwrap(), 1);
    browser.click(".filter .clear").unwrap();
    browser
        .until("location.pathname + location.search === '/' && document.readyState === 'complete'")
        .unwrap();

    // Keys: down, down, up, open; back; search.
    for (key, place) in [('j', 0), ('j', 1), ('j', 2), ('k', 1)] {
        browser.press(Key::Letter(key)).unwrap();
        let stop = format!("document.querySelectorAll('.group > a')[{place}] === document.activeElement");
        browser.until(&stop).unwrap();
    }
    let outlined = browser.text("getComputedStyle(document.activeElement).outlineStyle").unwrap();
    assert_eq!(outlined, "solid", "one sees where one is");
    browser.press(Key::Enter).unwrap();
    browser.until("location.search === '?cause=swap-enabled' && document.readyState === 'complete'").unwrap();
    browser.press(Key::Letter('g')).unwrap();
    browser
        .until("location.pathname + location.search === '/' && document.readyState === 'complete'")
        .unwrap();
    browser.press(Key::Letter('c')).unwrap();
    browser.until("location.pathname === '/causes' && document.readyState === 'complete'").unwrap();
    browser.press(Key::Letter('/')).unwrap();
    browser.until("document.activeElement.id === 'find'").unwrap();
    browser.write("lookup api.corp").unwrap();
    browser.press(Key::Enter).unwrap();
    browser.until("location.pathname === '/search' && document.readyState === 'complete'").unwrap();
    assert!(
        browser.text("document.querySelector('.results pre').innerText").unwrap().contains("no such host")
    );
    // The first Tab stop is the link that skips the navigation.
    browser.press(Key::Tab).unwrap();
    assert_eq!(browser.text(FOCUS).unwrap(), "#main");
}

#[test]
fn what_happens_is_on_the_open_page_without_loading_it_again() {
    if !have(Browser::NEEDS) {
        return;
    }
    let hub = TestHub::start();
    hub.stored(&envelope("worker-1", 1, running()));
    let mut browser = Browser::start().unwrap();
    browser.open(&url(&hub, "/")).unwrap();
    browser.until("document.getElementById('live').innerText === 'live'").unwrap();
    browser.evaluate("window.untouched = true").unwrap();
    browser.press(Key::Letter('j')).unwrap();
    browser.until("document.activeElement.innerText === 'worker-1'").unwrap();
    hub.stored(&envelope("worker-1", 2, no_dns()));
    browser.until("document.querySelector('h1').innerText === '1 of 1 node is in trouble: 1 cause'").unwrap();
    browser.until("document.title.startsWith('1 of 1 node is in trouble')").unwrap();
    hub.stored(&envelope("worker-1", 3, succeeded()));
    browser.until("document.querySelector('h1').innerText === 'The one node made it'").unwrap();
    assert_eq!(browser.evaluate("window.untouched").unwrap(), true, "the page was loaded again");
    assert_eq!(
        browser.text("document.activeElement.innerText").unwrap(),
        "worker-1",
        "the reader's place is kept"
    );
}

#[test]
fn what_somebody_types_is_not_taken_from_under_their_hands() {
    if !have(Browser::NEEDS) {
        return;
    }
    let hub = TestHub::start();
    hub.stored(&envelope("worker-1", 1, running()));
    let mut browser = Browser::start().unwrap();
    browser.open(&url(&hub, "/")).unwrap();
    browser.until("document.getElementById('live').innerText === 'live'").unwrap();
    browser.evaluate("document.querySelector('.filter [name=q]').focus()").unwrap();
    browser.write("work").unwrap();
    hub.stored(&envelope("worker-1", 2, no_dns()));
    // All open pages are notified by now, including this one.
    browser
        .evaluate(
            "new Promise(done => { const events = new EventSource('/api/v1/events'); \
             events.addEventListener('changed', () => { events.close(); done(true); }); })",
        )
        .unwrap();
    assert_eq!(browser.text("document.querySelector('.filter [name=q]').value").unwrap(), "work");
    browser.press(Key::Escape).unwrap();
    browser.until("document.querySelector('h1').innerText === '1 of 1 node is in trouble: 1 cause'").unwrap();
}

#[test]
fn everything_can_be_read_without_scripts() {
    if !have(Browser::NEEDS) {
        return;
    }
    let hub = wrecked();
    let mut browser = Browser::start().unwrap();
    browser.scripts(false).unwrap();
    browser.open(&url(&hub, "/")).unwrap();
    assert_eq!(browser.evaluate(ROWS).unwrap(), 100);
    assert_eq!(
        browser.evaluate("document.getElementById('live').hidden").unwrap(),
        true,
        "nothing claims to be live"
    );
    browser.click("a[rel=next]").unwrap();
    browser.until("location.search.includes('offset=100') && document.readyState === 'complete'").unwrap();
    assert_eq!(browser.evaluate(ROWS).unwrap(), 100);
    browser.click(".nodes th a").unwrap();
    browser.until("location.pathname.startsWith('/nodes/') && document.readyState === 'complete'").unwrap();
    assert!(!browser.text("document.querySelector('.verdict h2').innerText").unwrap().is_empty());
}
