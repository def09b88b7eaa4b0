//! Causes over time: the failures of each cause and their trend.

use std::collections::BTreeMap;

use askama::Template;
use axum::extract::{Query, State};
use jiff::Timestamp;
use landfall_model::Cause;
use serde::Deserialize;

use super::super::Served;
use super::shown;
use super::{Looking, Page, render};
use crate::store::FleetQuery;

/// Number of bars per chart.
const STEPS: u32 = 48;
/// Width of one bar with its gap, in chart units.
const BAR: u32 = 10;
/// Height of the tallest bar, in chart units.
const HEIGHT: u64 = 30;
const PERIODS: &[(u32, &str)] = &[(1, "hour"), (24, "day"), (168, "week"), (720, "month")];

#[derive(Deserialize)]
pub(super) struct Parameters {
    hours: Option<u32>,
}

#[derive(Template)]
#[template(path = "causes.html")]
struct CausesPage {
    place: &'static str,
    period: &'static str,
    chosen: u32,
    periods: Vec<(&'static u32, &'static str)>,
    width: u32,
    causes: Vec<CauseView>,
}

struct CauseView {
    name: Option<String>,
    title: String,
    now: u64,
    turned: u64,
    link: String,
    about: String,
    bars: Vec<Bar>,
}

struct Bar {
    x: u32,
    y: u64,
    height: u64,
}

pub(super) async fn page(
    State(served): State<Served>,
    Looking(caller): Looking,
    Query(parameters): Query<Parameters>,
) -> Page {
    let wanted = parameters.hours.unwrap_or(24);
    let (hours, period) = PERIODS.iter().find(|(hours, _)| *hours == wanted).unwrap_or(&PERIODS[1]);
    let since = Timestamp::now() - jiff::SignedDuration::from_hours(i64::from(*hours));
    let trend = served.hub.trend(&caller, since, hours * 3600 / STEPS).await?;
    let fleet = served.hub.fleet(&caller, FleetQuery::default()).await?;
    let mut steps: BTreeMap<Option<Cause>, BTreeMap<u32, u64>> = BTreeMap::new();
    for group in &fleet.groups {
        steps.entry(group.cause.clone()).or_default();
    }
    for point in trend.points {
        *steps.entry(point.cause).or_default().entry(point.step.min(STEPS - 1)).or_default() += point.nodes;
    }
    let mut causes: Vec<CauseView> = steps
        .into_iter()
        .map(|(cause, steps)| {
            let group = fleet.groups.iter().find(|group| group.cause == cause);
            let entry = cause.as_ref().and_then(|cause| served.hub.cause(cause));
            let title = match (group, entry, &cause) {
                (Some(group), _, _) => group.title.clone(),
                (None, Some(entry), _) => entry.title.clone(),
                (None, None, Some(cause)) => cause.to_string(),
                (None, None, None) => "No cause is known".to_owned(),
            };
            let most = steps.values().copied().max().unwrap_or(1).max(1);
            let turned = steps.values().sum();
            let bars = steps.iter().map(|(step, nodes)| {
                let height = (nodes * HEIGHT / most).max(2);
                Bar { x: step * BAR, y: HEIGHT + 1 - height, height }
            });
            CauseView {
                title: shown::sentence(&title),
                now: group.map_or(0, |group| group.nodes),
                turned,
                link: format!("/?cause={}#nodes", cause.as_ref().map_or("none", Cause::as_str)),
                about: format!(
                    "{} in the last {period}, {most} at most at once",
                    shown::counted(turned, "turn", "turns")
                ),
                bars: bars.collect(),
                name: cause.map(|cause| cause.to_string()),
            }
        })
        .collect();
    causes.sort_by(|one, other| {
        (other.now, other.turned, &one.title).cmp(&(one.now, one.turned, &other.title))
    });
    render(&CausesPage {
        place: "causes",
        period,
        chosen: *hours,
        periods: PERIODS.iter().map(|(hours, name)| (hours, *name)).collect(),
        width: STEPS * BAR,
        causes,
    })
}
