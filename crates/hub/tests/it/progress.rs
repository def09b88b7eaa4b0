//! Progress of in-place bootstraps: events arrive in any order and are returned in order.

use jiff::{SignedDuration, Timestamp};
use landfall_hub::NodeName;
use landfall_hub::store::{Heard, MAX_ATTEMPTS, MAX_EVENTS, Store};
use landfall_model::in_place::{Progress, State};
use serde_json::json;

use crate::bed::{TestHub, envelope, running};

fn event(attempt: &str, sequence: u64, state: State) -> Progress {
    let time = "2026-01-02T03:04:05Z".parse().unwrap();
    Progress { attempt: attempt.to_owned(), sequence, time, boot_id: "b1".to_owned(), state, step: None }
}

fn failed() -> State {
    State::Failed { reason: "no room".to_owned(), step: "preflight".to_owned(), retryable: true }
}

pub(crate) async fn progress_is_ordered_and_bounded(store: &dyn Store) {
    let name = |name: &str| NodeName::new(name).unwrap();
    let now = Timestamp::now();
    let add = async |node: &str, event: Progress| store.add_progress(name(node), event, now).await.unwrap();
    let sequences = async |node: &str| -> Vec<u64> {
        let events = store.progress(name(node)).await.unwrap();
        events.iter().map(|event| event.progress.sequence).collect()
    };

    // Events in any order and repeated; stored once and in order.
    for (sequence, state, heard) in [
        (2, State::Preflight, Heard::Stored),
        (1, State::Claimed, Heard::Stored),
        (2, State::Preflight, Heard::Duplicate),
        (2, State::Done, Heard::Taken),
        (3, failed(), Heard::Stored),
    ] {
        assert_eq!(add("told", event("a1", sequence, state)).await, heard, "{sequence}");
    }
    assert_eq!(sequences("told").await, [1, 2, 3]);

    // A new attempt replaces the displayed one; a late event of the previous attempt changes nothing.
    assert_eq!(add("told", event("a2", 1, State::Claimed)).await, Heard::Stored);
    assert_eq!(add("told", event("a1", 4, State::Done)).await, Heard::Stored);
    assert_eq!(sequences("told").await, [1]);
    let line =
        |lines: Vec<landfall_hub::store::ProgressLine>| lines.into_iter().find(|line| line.node == "told");
    let shown = line(store.progress_lines(1000).await.unwrap()).unwrap();
    assert_eq!((shown.event.progress.attempt.as_str(), &shown.event.progress.state), ("a2", &State::Claimed));

    // A loop uses a limited number of rows, and a removed event is not stored again.
    for sequence in 1..=u64::from(MAX_EVENTS) + 10 {
        assert_eq!(add("loops", event("a", sequence, failed())).await, Heard::Stored);
    }
    let kept = sequences("loops").await;
    assert_eq!((kept.len(), kept[0]), (MAX_EVENTS as usize, 11));
    assert_eq!(add("loops", event("a", 3, failed())).await, Heard::Duplicate);
    for attempt in 0..=MAX_ATTEMPTS {
        add("often", event(&attempt.to_string(), 1, State::Done)).await;
    }
    assert_eq!(add("often", event(&MAX_ATTEMPTS.to_string(), 1, State::Done)).await, Heard::Duplicate);
    assert_eq!(add("often", event("1", 1, State::Done)).await, Heard::Duplicate, "still kept");

    // Retention and the deletion of the node delete its progress.
    assert!(store.forget(name("often")).await.unwrap());
    assert!(sequences("often").await.is_empty());
    assert!(!store.forget(name("often")).await.unwrap());
    let before = now - SignedDuration::from_hours(1);
    store.prune(before, before).await.unwrap();
    assert_eq!(sequences("told").await, [1]);
    store.add_progress(name("old"), event("a", 1, State::Done), before).await.unwrap();
    store.prune(now, before).await.unwrap();
    assert!(sequences("old").await.is_empty());
}

#[test]
fn a_node_tells_how_far_it_is_and_the_hub_shows_it() {
    let hub = TestHub::start();
    let post =
        |node: &str, body: &[u8]| hub.request("POST", &format!("/api/v1/nodes/{node}/progress"), &[], body);
    let tell = |node: &str, event: &Progress| post(node, &serde_json::to_vec(event).unwrap());
    assert_eq!(hub.get("/api/v1/nodes/n1/progress").status, 404);
    // A node without reports may send progress.
    let first = event("a1", 1, State::Claimed);
    for outcome in ["stored", "duplicate"] {
        let answer = tell("n1", &first);
        assert_eq!((answer.status, answer.json()), (200, json!({"outcome": outcome})));
    }
    assert_eq!(tell("n1", &event("a1", 1, State::Armed)).status, 409);
    assert_eq!(tell("n1", &event("a1", 2, failed())).status, 200);
    hub.stored(&envelope("n2", 1, running()));
    let shown = hub.json("/api/v1/nodes/n1/progress");
    assert_eq!(
        shown["events"][1]["state"],
        json!({"is": "failed", "reason": "no room", "step": "preflight", "retryable": true})
    );
    let all = hub.json("/api/v1/progress");
    assert_eq!(all["nodes"].as_array().unwrap().len(), 1, "{all}");
    assert_eq!((&all["nodes"][0]["node"], &all["nodes"][0]["sequence"]), (&json!("n1"), &json!(2)));

    let good = serde_json::to_value(&first).unwrap();
    for (field, wrong) in [
        ("attempt", json!("")),
        ("attempt", json!("a".repeat(129))),
        ("attempt", json!("a\nb")),
        ("sequence", json!(0)),
        ("sequence", json!(1_u64 << 54)),
        ("sequence", json!(-1)),
        ("state", json!({"is": "odd"})),
        ("step", json!("a b")),
        ("bootId", json!(null)),
    ] {
        let mut event = good.clone();
        event[field] = wrong.clone();
        assert_eq!(post("n1", event.to_string().as_bytes()).status, 422, "{field}: {wrong}");
    }
    assert_eq!(post("n1", &vec![b' '; 65 << 10]).status, 413);
    assert_eq!(post("a%20b", good.to_string().as_bytes()).status, 400);
}

#[test]
fn the_page_of_a_node_leads_to_its_in_place_bootstrap() {
    let hub = TestHub::start();
    hub.stored(&envelope("n1", 1, running()));
    assert!(!hub.get("/nodes/n1").text().contains("/waves/n1"));
    let body = serde_json::to_vec(&event("a1", 1, failed())).unwrap();
    assert_eq!(hub.request("POST", "/api/v1/nodes/n1/progress", &[], &body).status, 200);
    let page = hub.get("/nodes/n1").text();
    assert!(page.contains("<a href=\"/waves/n1\"><span class=\"state failed\">failed</span></a>"), "{page}");
}
