//! Deletion of a node, with a confirmation page because it cannot be undone.

use askama::Template;
use axum::extract::{Path, State};
use axum::response::Redirect;
use jiff::Timestamp;

use super::super::Served;
use super::super::api::node_name;
use super::shown::{self, ago};
use super::{Looking, Page, PageProblem, render};
use crate::access::Wish;

#[derive(Template)]
#[template(path = "forget.html")]
struct ForgetPage {
    place: &'static str,
    name: String,
    signed: bool,
    reports: String,
    bundles: String,
    heard: String,
}

pub(super) async fn page(
    State(served): State<Served>,
    Looking(caller): Looking,
    Path(name): Path<String>,
) -> Page {
    caller.may(Wish::Operate).map_err(crate::problem::Problem::from)?;
    let view = served.hub.node(&caller, &node_name(name)?).await?;
    render(&ForgetPage {
        place: "",
        name: view.node.line.name,
        signed: view.node.signed,
        reports: shown::counted(view.node.reports, "report", "reports"),
        bundles: shown::counted(view.bundles.len() as u64, "bundle", "bundles"),
        heard: ago(view.node.line.last_seen, Timestamp::now()),
    })
}

pub(super) async fn forget(
    State(served): State<Served>,
    Looking(caller): Looking,
    Path(name): Path<String>,
) -> Result<Redirect, PageProblem> {
    served.hub.forget(&caller, &node_name(name)?).await?;
    Ok(Redirect::to("/"))
}
