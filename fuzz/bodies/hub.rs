//! Body of the `hub_event` target.

use landfall_hub::CloudEvent;

/// Any bytes as an event in both modes: the first line names attributes instead of headers.
pub(crate) fn event(bytes: &[u8]) {
    let _ = CloudEvent::read("application/cloudevents+json", |_| None, bytes);
    let end = bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len());
    let (head, body) = bytes.split_at(end);
    let head = String::from_utf8_lossy(head);
    let header = |name: &str| {
        let pairs = head.split(';').filter_map(|pair| pair.split_once('='));
        pairs.into_iter().find(|(known, _)| *known == name).map(|(_, value)| value.to_owned())
    };
    if let Ok(event) = CloudEvent::read("application/json", header, body) {
        assert_eq!(header("ce-type").as_deref(), Some("dev.landfall.report.v1"));
        assert_eq!(header("ce-id"), Some(event.id.to_string()));
        assert_eq!(header("ce-dataref"), event.reference);
    }
}
