//! `/metrics`, `/livez` and `/readyz`.

use std::collections::BTreeMap;

use axum::Router;
use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;
use axum::routing::get;
use landfall_model::Cause;
use landfall_net::metrics::{METRICS_MEDIA_TYPE, MetricType, MetricsText};

use super::Served;
use super::asking::Asking;
use crate::access::Wish;
use crate::counters::Counters;
use crate::problem::Problem;
use crate::store::{FleetQuery, Group, StateCount, StoreSize};

/// Label of causes outside the catalog and of failures without a cause.
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
    Ok(([(header::CONTENT_TYPE, METRICS_MEDIA_TYPE)], text))
}

/// Counts failing nodes by cause. Nodes choose their causes, so only causes of the catalog get a series of their
/// own, which limits the number of series.
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

/// Returns the `/metrics` page of a hub without data; it lists all metrics.
#[cfg(feature = "schema")]
pub fn page_at_start() -> String {
    use landfall_model::report::State;

    let all = [State::Failed, State::Hung, State::Running, State::Degraded, State::Succeeded, State::Unknown];
    let states = all.map(|state| StateCount { state, nodes: 0 });
    // A placeholder for any cause.
    let causes = BTreeMap::from([("0".to_owned(), 0)]);
    page(&Counters::default(), &states, &causes, StoreSize::default())
}

fn page(
    counters: &Counters,
    states: &[StateCount],
    causes: &BTreeMap<String, u64>,
    size: StoreSize,
) -> String {
    let mut text = MetricsText::new("landfall_hub_");
    let help = "Total number of reports received, by outcome.";
    text.family("reports_total", MetricType::Counter, help)
        .value(&[("outcome", "stored")], counters.stored.get())
        .value(&[("outcome", "late")], counters.late.get())
        .value(&[("outcome", "duplicate")], counters.duplicate.get())
        .value(&[("outcome", "refused")], counters.refused.get());
    let help = "Time from a complete single report to its acknowledgement.";
    text.histogram("accept_seconds", help, &counters.accepts);
    text.family("pulls_total", MetricType::Counter, "Total number of agent polls, by outcome.")
        .value(&[("outcome", "answered")], counters.pulls.get())
        .value(&[("outcome", "failed")], counters.failed_pulls.get());
    text.counter("bundles_total", "Total number of bundles verified and stored.", &counters.bundles);
    let mut nodes = text.family("nodes", MetricType::Gauge, "Number of known nodes, by state.");
    for count in states {
        nodes.value(&[("state", count.state.name())], count.nodes);
    }
    let help = "Number of troubled nodes, by cause; `other` is outside the catalog, `none` is unknown.";
    let mut troubled = text.family("troubled_nodes", MetricType::Gauge, help);
    for (cause, count) in causes {
        troubled.value(&[("cause", cause)], count);
    }
    text.gauge("store_bytes", "Size of the database.", size.store);
    text.gauge("bundle_bytes", "Size of all bundles, compressed.", size.bundles);
    text.finish()
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
