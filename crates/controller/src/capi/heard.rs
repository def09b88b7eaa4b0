//! The last reports of nodes, from any source.
//!
//! The input is untrusted: parsing does no I/O, and the caller bounds its size.

use std::fmt;
use std::pin::Pin;

use jiff::Timestamp;
use landfall_model::report::{State, Trust};
use landfall_model::{Cause, Phase};
use serde::Deserialize;

/// The last report of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heard {
    /// The node's name. The hub rejects reports under another node's name.
    pub name: String,
    /// The cloud's ID of the machine, as reported by the node itself.
    pub provider_id: Option<String>,
    /// The only Machine the report can be about, by namespace and name.
    pub bound: Option<(String, String)>,
    pub state: State,
    /// Whether the evidence of the verdict has a proven origin.
    pub trust: Trust,
    pub cause: Option<Cause>,
    pub title: String,
    pub component: Option<String>,
    pub phase: Option<Phase>,
    /// Start of this verdict, if known. A heartbeat repeats a verdict without making it newer.
    pub since: Option<Timestamp>,
    pub last_seen: Timestamp,
    /// Whether the hub has a page about the node.
    pub is_in_hub: bool,
}

/// One page of the hub's nodes, in the order of their names.
#[derive(Clone, Debug)]
pub struct NodePage {
    pub heard: Vec<Heard>,
    /// Nodes on this page whose format this version does not know, because the hub is newer.
    pub unread: usize,
    /// The name after which the next page begins; `None` on the last page.
    pub next: Option<String>,
}

/// The body of a successful response.
pub type Answer<'a> =
    Pin<Box<dyn Future<Output = Result<Vec<u8>, Box<dyn std::error::Error + Send + Sync>>> + Send + 'a>>;

/// A hub that can be queried by a path of its API.
pub trait Hub: fmt::Debug + Send + Sync {
    fn get(&self, path: String) -> Answer<'_>;
}

/// The response is not in the hub's format.
#[derive(Debug, thiserror::Error)]
#[error("read the hub's answer")]
pub struct NotAHub(#[source] serde_json::Error);

#[derive(Deserialize)]
struct Page {
    nodes: Vec<serde_json::Value>,
    next: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    name: String,
    provider_id: Option<String>,
    state: State,
    /// Older hubs do not send it: their verdicts are claims.
    #[serde(default)]
    trust: Trust,
    cause: Option<Cause>,
    #[serde(default)]
    title: String,
    component: Option<String>,
    phase: Option<Phase>,
    since: Option<Timestamp>,
    last_seen: Timestamp,
}

#[derive(Deserialize)]
struct Node {
    bundles: Vec<Bundle>,
}

#[derive(Deserialize)]
struct Bundle {
    received: Timestamp,
}

/// Parses `GET /api/v1/nodes`. An invalid line of a newer hub does not affect the others.
pub fn read_nodes(body: &[u8]) -> Result<NodePage, NotAHub> {
    let page: Page = serde_json::from_slice(body).map_err(NotAHub)?;
    let count = page.nodes.len();
    let lines = page.nodes.into_iter().filter_map(|line| serde_json::from_value::<Line>(line).ok());
    let heard = lines.map(|line| Heard {
        name: line.name,
        provider_id: line.provider_id.filter(|id| !id.is_empty()),
        bound: None,
        state: line.state,
        trust: line.trust,
        cause: line.cause,
        title: line.title,
        component: line.component,
        phase: line.phase,
        since: line.since,
        last_seen: line.last_seen,
        is_in_hub: true,
    });
    let heard: Vec<Heard> = heard.collect();
    Ok(NodePage { unread: count - heard.len(), heard, next: page.next })
}

/// Parses `GET /api/v1/nodes/NAME` and returns the time of the node's latest bundle.
pub fn read_node(body: &[u8]) -> Result<Option<Timestamp>, NotAHub> {
    let node: Node = serde_json::from_slice(body).map_err(NotAHub)?;
    Ok(node.bundles.into_iter().map(|bundle| bundle.received).max())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_page_is_read_and_a_strange_line_left_out() {
        let body = json!({"next": "n2", "nodes": [
            {"name": "n1", "providerId": "aws:///i-1", "state": "failed", "cause": "disk-full", "title": "Full", "trust": "proven",
             "component": "kubelet", "phase": "join", "confidence": 0.9, "since": "2026-01-02T03:04:05Z", "lastSeen": "2026-01-02T03:05:05Z"},
            {"name": "n2", "state": "levitating", "lastSeen": "2026-01-02T03:05:05Z"},
        ]});
        let page = read_nodes(body.to_string().as_bytes()).unwrap();
        assert_eq!((page.heard.len(), page.unread, page.next.as_deref()), (1, 1, Some("n2")));
        let heard = &page.heard[0];
        assert_eq!((heard.name.as_str(), heard.state, heard.trust), ("n1", State::Failed, Trust::Proven));
        assert_eq!(heard.cause.as_ref().map(Cause::as_str), Some("disk-full"));
        assert_eq!(heard.last_seen.to_string(), "2026-01-02T03:05:05Z");
        assert_eq!(heard.since.map(|since| since.to_string()).as_deref(), Some("2026-01-02T03:04:05Z"));
        assert_eq!(heard.provider_id.as_deref(), Some("aws:///i-1"));
    }

    #[test]
    fn missing_trust_is_claimed() {
        let mut line = json!({"name": "n1", "state": "failed", "lastSeen": "2026-01-02T03:05:05Z"});
        let read = |line: &serde_json::Value| {
            let page = json!({"next": null, "nodes": [line]}).to_string();
            read_nodes(page.as_bytes()).unwrap().heard.first().map(|heard| heard.trust)
        };
        assert_eq!(read(&line), Some(Trust::Claimed));
        line["trust"] = json!("claimed");
        assert_eq!(read(&line), Some(Trust::Claimed));
        line["trust"] = json!("certain");
        assert_eq!(read(&line), None, "an unknown value is not taken for proven");
    }

    #[test]
    fn of_the_bundles_of_a_node_the_latest_counts() {
        let body = json!({"identity": {"hostname": "n1"}, "bundles": [
            {"received": "2026-01-02T03:04:05Z"}, {"received": "2026-01-03T03:04:05Z"}]});
        let bundle = read_node(body.to_string().as_bytes()).unwrap();
        assert_eq!(bundle.unwrap().to_string(), "2026-01-03T03:04:05Z");
        assert_eq!(read_node(br#"{"bundles": []}"#).unwrap(), None);
    }

    #[test]
    fn what_is_no_answer_of_a_hub_is_refused() {
        for body in [&b""[..], b"[]", b"<html>", b"{}", br#"{"next": 1, "nodes": []}"#] {
            assert!(read_nodes(body).is_err() && read_node(body).is_err());
        }
    }
}
