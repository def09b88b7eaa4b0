//! Bodies of the `capi_*` targets.

use std::sync::LazyLock;

use landfall_controller::capi::condition::{Status, Words, shown};
use landfall_controller::capi::heard::{Heard, read_node, read_nodes};
use landfall_controller::capi::machine::{Machine, paused_cluster};
use landfall_controller::capi::report;
use landfall_controller::capi::shape::Shape;
use landfall_model::report::Trust;
use serde_json::{Value, json};

static WORDS: LazyLock<Words> = LazyLock::new(|| {
    Words::new(Some("https://hub".to_owned())).expect("the catalogue is part of the program")
});

/// Any response of a hub or a node: a Machine shows one short line.
pub(crate) fn said(bytes: &[u8]) {
    let _ = read_node(bytes);
    let mut heard = read_nodes(bytes).map(|page| page.heard).unwrap_or_default();
    if let Ok(object) = serde_json::from_slice::<Value>(bytes) {
        let _ = Shape::read(&object);
        let _ = paused_cluster(&object);
        let _ = Machine::read(&object);
        heard.extend(report::read(&object).and_then(|found| found.heard));
    }
    heard.iter().take(3).for_each(check);
}

fn check(heard: &Heard) {
    let machine = json!({"metadata": {"namespace": "n", "name": "m", "uid": "u",
        "creationTimestamp": "2026-01-02T03:04:05Z"}});
    let machine = Machine::read(&machine).expect("a Machine is read");
    let shown = shown(&machine, heard, machine.created, &WORDS);
    // Only a proven verdict may set a status that other controllers use.
    assert!(heard.trust == Trust::Proven || shown.status == Status::Unknown);
    assert!(shown.message.chars().count() <= 1000 && !shown.message.chars().any(char::is_control));
    assert!(shown.reason.len() <= 256 && shown.reason.bytes().all(|byte| byte.is_ascii_alphanumeric()));
}
