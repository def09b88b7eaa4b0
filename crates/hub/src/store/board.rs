//! The fleet view, identical on every store.

use serde::Deserialize;

/// Maximum number of groups in the fleet view; exceeds the number of causes in the catalog.
pub(super) const MAX_GROUPS: i64 = 200;
/// Number of node names per group.
pub(super) const EXAMPLES: i64 = 6;
/// Maximum number of listed bundles per node.
pub(super) const MAX_BUNDLES: i64 = 200;

pub(super) const TROUBLE: &str = "state IN ('failed', 'hung', 'degraded')";

pub(super) const LINE: &str = "n.name, n.state, n.cause, n.title, n.phase, n.confidence, \
     coalesce(n.proven_body = n.body, false), n.component, n.since, p.last_seen, n.identity";

/// The part of an identity that a line shows; the rest is skipped, because there are many lines.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Named {
    provider_id: Option<String>,
}

pub(super) fn provider_id(identity: &str) -> serde_json::Result<Option<String>> {
    serde_json::from_str::<Named>(identity).map(|named| named.provider_id)
}
