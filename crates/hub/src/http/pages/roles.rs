//! Gateways and tunnels: whether the routes into the cluster are available.

use askama::Template;
use axum::extract::State;
use jiff::Timestamp;

use super::super::Served;
use super::shown::{self, ago};
use super::{Looking, Page, render};
use crate::access::Wish;
use crate::problem::Problem;
use crate::roles::{Readiness, RoleHealth};

#[derive(Template)]
#[template(path = "roles.html")]
struct RolesPage {
    place: &'static str,
    headline: String,
    roles: Vec<RoleView>,
}

struct RoleView {
    name: String,
    address: String,
    /// The color, named after a node state.
    state: &'static str,
    readiness: &'static str,
    since: String,
    asked: Option<String>,
    detail: String,
    figures: Vec<(&'static str, String)>,
}

pub(super) async fn page(State(served): State<Served>, Looking(caller): Looking) -> Page {
    caller.may(Wish::See).map_err(Problem::from)?;
    let now = Timestamp::now();
    let mut health = served.hub.roles.health();
    health.sort_by_key(|role| (rank(role.readiness), role.name.clone()));
    let ready = health.iter().filter(|role| role.readiness == Readiness::Ready).count();
    let asked = health.iter().filter(|role| role.readiness != Readiness::NotAsked).count();
    let headline = match health.len() {
        0 => "No gateway or tunnel is watched".to_owned(),
        1 if ready == 1 => "The one role that is watched is ready".to_owned(),
        all if ready == all => format!("All {all} roles are ready"),
        all if asked < all => format!("{ready} of {all} roles are ready, {} not asked yet", all - asked),
        all => format!("{} of {} not ready", all - ready, shown::counted(all as u64, "role is", "roles are")),
    };
    let roles = health.into_iter().map(|role| RoleView::new(role, now)).collect();
    render(&RolesPage { place: "roles", headline, roles })
}

/// Order of the targets: those that need attention first.
fn rank(readiness: Readiness) -> u8 {
    match readiness {
        Readiness::Unreachable => 0,
        Readiness::NotReady => 1,
        Readiness::NotAsked => 2,
        Readiness::Ready => 3,
    }
}

// === impl RoleView ===

impl RoleView {
    fn new(role: RoleHealth, now: Timestamp) -> Self {
        let (state, readiness) = match role.readiness {
            Readiness::NotAsked => ("unknown", "not asked yet"),
            Readiness::Ready => ("succeeded", "ready"),
            Readiness::NotReady => ("degraded", "not ready"),
            Readiness::Unreachable => ("failed", "unreachable"),
        };
        Self {
            name: shown::text(&role.name),
            address: shown::text(&role.address),
            state,
            readiness,
            since: ago(role.since, now),
            asked: role.asked.map(|asked| ago(asked, now)),
            detail: shown::text(&role.detail),
            figures: role
                .figures
                .into_iter()
                .map(|(caption, value)| (caption, format!("{value:.0}")))
                .collect(),
        }
    }
}
