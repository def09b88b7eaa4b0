//! `/metrics`, `/livez` and `/readyz`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::Router;
use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;
use axum::routing::get;
use landfall_model::Cause;

use super::Served;
use super::asking::Asking;
use crate::access::Wish;
use crate::counters::Counters;
use crate::problem::Problem;
use crate::store::{FleetQuery, Group, StateCount, StoreSize};

/// Causes that are none of the catalogue, and trouble without a cause.
const OTHER: &str = "other";
const NONE: &str = "none";

pub(super) fn router() -> Router<Served> {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/livez", get(async || "ok"))
        .route("/readyz", get(ready))
        .route("/healthz", get(ready))
}

async fn ready(State(served): State<Served>) -> Result<&'static str, Problem> {
    served.hub.store.ready().await?;
    Ok("ok")
}

async fn metrics(State(served): State<Served>, Asking(caller): Asking) -> Result<impl IntoResponse, Problem> {
    caller.may(Wish::See)?;
    let fleet = served.hub.store.fleet(FleetQuery::default()).await?;
    let size = served.hub.store.size().await?;
    let causes = causes(&fleet.groups, |cause| served.hub.cause(cause).is_some());
    let text = page(&served.hub.counters, &fleet.states, &causes, size);
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text))
}

/// Nodes in trouble by cause. Nodes choose what they say: only causes of the catalogue have a line of their own, so that nobody
/// can make ever more of them.
fn causes(groups: &[Group], is_known: impl Fn(&Cause) -> bool) -> BTreeMap<String, u64> {
    let mut causes = BTreeMap::new();
    for group in groups {
        let name = match &group.cause {
            Some(cause) if is_known(cause) => cause.as_str(),
            Some(_) => OTHER,
            None => NONE,
        };
        *causes.entry(name.to_owned()).or_default() += group.nodes;
    }
    causes
}

/// What `/metrics` says when nothing has happened yet: all there is to be read.
#[cfg(feature = "schema")]
pub fn page_at_start() -> String {
    use landfall_model::report::State;

    let all = [State::Failed, State::Hung, State::Running, State::Degraded, State::Succeeded, State::Unknown];
    let states = all.map(|state| StateCount { state, nodes: 0 });
    // One that stands for any.
    let causes = BTreeMap::from([("0".to_owned(), 0)]);
    page(&Counters::default(), &states, &causes, StoreSize::default())
}

fn page(
    counters: &Counters,
    states: &[StateCount],
    causes: &BTreeMap<String, u64>,
    size: StoreSize,
) -> String {
    let counted = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let mut text = series(
        ("landfall_hub_reports_total", "counter", "Reports that came in, by what became of them."),
        "outcome",
        &[
            ("stored", counted(&counters.stored)),
            ("late", counted(&counters.late)),
            ("duplicate", counted(&counters.duplicate)),
            ("refused", counted(&counters.refused)),
        ],
    );
    let help = "Time from a whole report, sent alone, to its acknowledgement.";
    counters.accepts.write("landfall_hub_accept_seconds", help, &mut text);
    text += &series(
        ("landfall_hub_pulls_total", "counter", "Agents asked for their reports, by whether they answered."),
        "outcome",
        &[("answered", counted(&counters.pulls)), ("failed", counted(&counters.failed_pulls))],
    );
    let bundles = counted(&counters.bundles);
    text += &one(("landfall_hub_bundles_total", "counter", "Bundles that were verified and kept."), bundles);
    let states: Vec<(&str, u64)> = states.iter().map(|count| (count.state.name(), count.nodes)).collect();
    text += &series(("landfall_hub_nodes", "gauge", "Nodes known, by state."), "state", &states);
    let causes: Vec<(&str, u64)> = causes.iter().map(|(cause, nodes)| (cause.as_str(), *nodes)).collect();
    let help =
        "Nodes in trouble, by cause of the catalogue; `other` are the rest, and of `none` none is known.";
    text += &series(("landfall_hub_troubled_nodes", "gauge", help), "cause", &causes);
    text += &one(("landfall_hub_store_bytes", "gauge", "Size of the database."), size.store);
    text + &one(("landfall_hub_bundle_bytes", "gauge", "Size of all bundles, packed."), size.bundles)
}

/// A metric by its name, type and meaning.
type Metric<'a> = (&'a str, &'a str, &'a str);

fn one((name, kind, help): Metric<'_>, value: u64) -> String {
    format!("# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}\n")
}

fn series((name, kind, help): Metric<'_>, label: &str, values: &[(&str, u64)]) -> String {
    let mut text = format!("# HELP {name} {help}\n# TYPE {name} {kind}\n");
    for (of, value) in values {
        text += &format!("{name}{{{label}=\"{of}\"}} {value}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use landfall_model::report::State;

    use super::*;

    #[test]
    fn causes_of_nodes_own_making_share_a_line() {
        let group = |cause: Option<&str>, nodes| Group {
            cause: cause.map(|cause| Cause::new(cause).unwrap()),
            title: String::new(),
            state: State::Failed,
            nodes,
            phases: Vec::new(),
            first: Timestamp::UNIX_EPOCH,
            last: Timestamp::UNIX_EPOCH,
            examples: Vec::new(),
        };
        let groups = [(Some("disk-full"), 4), (Some("made-up-1"), 2), (Some("made-up-2"), 3), (None, 1)]
            .map(|(c, n)| group(c, n));
        let causes = causes(&groups, |cause| cause.as_str() == "disk-full");
        let causes: Vec<(&str, u64)> = causes.iter().map(|(cause, nodes)| (cause.as_str(), *nodes)).collect();
        assert_eq!(causes, [("disk-full", 4), ("none", 1), ("other", 5)]);
    }
}
