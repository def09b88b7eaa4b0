//! The log viewer: the link from the node's page to the line in the log, and search.

use landfall_testkit::{Browser, Key, have};

use super::{nothing_ran, picture, url, with_bundle, wrecked};

#[test]
fn one_click_leads_from_the_proof_to_its_line_in_the_log() {
    if !have(Browser::NEEDS) {
        return;
    }
    let hub = wrecked();
    with_bundle(&hub, "worker-000");
    let mut browser = Browser::start().unwrap();
    browser.open(&url(&hub, "/nodes/worker-000")).unwrap();
    browser.click(".evidence figcaption a").unwrap();
    browser.until("location.hash === '#L42' && document.readyState === 'complete'").unwrap();
    browser.until("document.querySelector('#L42') !== null").unwrap();
    let marked = browser.text("document.querySelector('.lines li.marked').innerText").unwrap();
    assert!(marked.contains("no such host"), "{marked}");
    let in_sight = "(() => { const r = document.querySelector('.lines li.marked').getBoundingClientRect(); \
                     return r.top > 0 && r.bottom < innerHeight; })()";
    browser.until(in_sight).unwrap();
    browser.screenshot(&picture("log.png")).unwrap();
    nothing_ran(&mut browser);

    // Searches in the file, and follows a hit to its line.
    browser.evaluate("document.querySelector('main [name=q]').focus()").unwrap();
    browser.write("line 150 of").unwrap();
    browser.press(Key::Enter).unwrap();
    browser.until("location.search.includes('q=line') && document.readyState === 'complete'").unwrap();
    assert_eq!(browser.text("document.querySelector('h1').innerText").unwrap(), "1 line holds this");
    browser.click(".lines a.number").unwrap();
    browser.until("location.hash === '#L150' && document.readyState === 'complete'").unwrap();
    browser
        .until("document.querySelector('.lines li.marked')?.innerText.includes('line 150 of') === true")
        .unwrap();
    // Opens the list of the bundle's files.
    browser.click(".crumbs a:last-of-type").unwrap();
    browser.until("document.querySelectorAll('.files tbody tr').length === 5").unwrap();
    browser.screenshot(&picture("log-files.png")).unwrap();
}
