//! Search results with the matching lines.

use askama::Template;
use axum::extract::{Query, State};
use jiff::Timestamp;
use serde::Deserialize;

use super::super::Served;
use super::shown::{self, ago};
use super::{Looking, Page, render};

#[derive(Deserialize)]
pub(super) struct Parameters {
    #[serde(default)]
    q: String,
}

#[derive(Template)]
#[template(path = "search.html")]
struct SearchPage {
    place: &'static str,
    q: String,
    headline: String,
    results: Vec<ResultView>,
}

struct ResultView {
    node: String,
    turn: u64,
    title: String,
    cause: Option<String>,
    when: String,
    lines: Vec<String>,
}

pub(super) async fn page(
    State(served): State<Served>,
    Looking(caller): Looking,
    Query(parameters): Query<Parameters>,
) -> Page {
    let q: String = parameters.q.trim().chars().take(400).collect();
    let found = served.hub.search(&caller, &q).await?;
    let now = Timestamp::now();
    let headline = match found.len() {
        _ if q.is_empty() => "Search evidence".to_owned(),
        0 => "Nothing holds all these words".to_owned(),
        count => shown::counted(count as u64, "report holds these words", "reports hold these words"),
    };
    let results = found.into_iter().map(|found| ResultView {
        node: found.node,
        turn: found.turn,
        title: shown::sentence(&found.title),
        cause: found.cause.map(|cause| cause.to_string()),
        when: format!("{} ago", ago(found.received, now)),
        lines: found.lines.iter().map(|line| shown::text(&line.text)).collect(),
    });
    render(&SearchPage { place: "", q: q.clone(), headline, results: results.collect() })
}
