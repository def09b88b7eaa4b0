//! `/metrics`, `/livez` and `/readyz`.

use std::sync::atomic::Ordering;

use axum::Router;
use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;
use axum::routing::get;

use super::Served;
use super::asking::Asking;
use crate::access::Wish;
use crate::hub::Counters;
use crate::problem::Problem;
use crate::store::{FleetQuery, StateCount};

pub(super) fn router() -> Router<Served> {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/livez", get(async || "ok"))
        .route("/readyz", get(ready))
        .route("/healthz", get(ready))
}

async fn ready(State(served): State<Served>) -> Result<&'static str, Problem> {
    served.hub.store.version().await?;
    Ok("ok")
}

async fn metrics(State(served): State<Served>, Asking(caller): Asking) -> Result<impl IntoResponse, Problem> {
    caller.may(Wish::See)?;
    let fleet = served.hub.store.fleet(FleetQuery::default()).await?;
    let text = page(&served.hub.counters, &fleet.states);
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text))
}

/// What `/metrics` says when nothing has happened yet: all there is to be read.
#[cfg(feature = "schema")]
pub fn page_at_start() -> String {
    use landfall_model::report::State;

    let all = [State::Failed, State::Hung, State::Running, State::Degraded, State::Succeeded, State::Unknown];
    page(&Counters::default(), &all.map(|state| StateCount { state, nodes: 0 }))
}

fn page(counters: &Counters, states: &[StateCount]) -> String {
    let mut text = String::from(
        "# HELP landfall_hub_reports_total Reports that came in, by what became of them.\n# TYPE landfall_hub_reports_total counter\n",
    );
    for (outcome, counter) in [
        ("stored", &counters.stored),
        ("late", &counters.late),
        ("duplicate", &counters.duplicate),
        ("refused", &counters.refused),
    ] {
        let count = counter.load(Ordering::Relaxed);
        text += &format!("landfall_hub_reports_total{{outcome=\"{outcome}\"}} {count}\n");
    }
    text += "# HELP landfall_hub_pulls_total Agents asked for their reports, by whether they answered.\n\
             # TYPE landfall_hub_pulls_total counter\n";
    for (outcome, counter) in [("answered", &counters.pulls), ("failed", &counters.failed_pulls)] {
        let count = counter.load(Ordering::Relaxed);
        text += &format!("landfall_hub_pulls_total{{outcome=\"{outcome}\"}} {count}\n");
    }
    let bundles = counters.bundles.load(Ordering::Relaxed);
    text += &format!(
        "# HELP landfall_hub_bundles_total Bundles that were verified and kept.\n# TYPE landfall_hub_bundles_total counter\n\
         landfall_hub_bundles_total {bundles}\n\
         # HELP landfall_hub_nodes Nodes known, by state.\n# TYPE landfall_hub_nodes gauge\n"
    );
    for count in states {
        text += &format!("landfall_hub_nodes{{state=\"{}\"}} {}\n", count.state.name(), count.nodes);
    }
    text
}
