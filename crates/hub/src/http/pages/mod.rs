//! The pages. Every page is readable without scripts, and values of nodes are inserted as text, never as markup.

mod causes;
mod fleet;
mod forget;
mod logs;
mod node;
mod roles;
mod search;
mod shown;
mod waves;

use askama::Template;
use axum::Router;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{Html, IntoResponse, Redirect, Response};
use axum::routing::get;

use super::Served;
use super::asking::Asking;
use crate::access::Caller;
use crate::problem::Problem;

/// Assets of the pages, embedded in the binary because they are small.
const ASSETS: &[(&str, &str, &str)] = &[
    ("/assets/style.css", "text/css; charset=utf-8", include_str!("../../../assets/style.css")),
    ("/assets/page.js", "text/javascript; charset=utf-8", include_str!("../../../assets/page.js")),
    ("/assets/icon.svg", "image/svg+xml", include_str!("../../../assets/icon.svg")),
];

/// A problem rendered as a page.
struct PageProblem(Problem);

type Page = Result<Html<String>, PageProblem>;

#[derive(Template)]
#[template(path = "problem.html")]
struct ProblemPage {
    place: &'static str,
    title: &'static str,
    detail: String,
}

pub(super) fn router() -> Router<Served> {
    let mut router = Router::new()
        .route("/", get(fleet::page))
        .route("/nodes/{node}", get(node::page))
        .route("/nodes/{node}/forget", get(forget::page).post(forget::forget))
        .route("/causes", get(causes::page))
        .route("/roles", get(roles::page))
        .route("/waves", get(waves::page))
        .route("/waves/{node}", get(waves::machine))
        .route("/search", get(search::page))
        .route("/logs/{digest}", get(logs::page))
        .route("/logs/{digest}/find", get(logs::find));
    for (path, kind, content) in ASSETS {
        let headers = [(header::CONTENT_TYPE, *kind), (header::CACHE_CONTROL, "max-age=300")];
        router = router.route(path, get(async move || (headers, *content)));
    }
    router
}

/// Returns whether the client accepts HTML.
pub(super) fn are_wanted(headers: &HeaderMap) -> bool {
    let accepted = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok());
    accepted.is_some_and(|accepted| accepted.contains("text/html"))
}

/// Renders a problem as a page.
pub(super) fn of(problem: Problem) -> Response {
    PageProblem(problem).into_response()
}

fn render(page: &impl Template) -> Page {
    page.render().map(Html).map_err(|error| {
        tracing::error!(error = %error, "A page cannot be made.");
        PageProblem(Problem::new(500, "Defect", "the page cannot be made"))
    })
}

/// The caller of a page; unauthenticated clients are redirected to the login.
struct Looking(Caller);

// === impl Looking ===

impl FromRequestParts<Served> for Looking {
    type Rejection = PageProblem;

    async fn from_request_parts(parts: &mut Parts, served: &Served) -> Result<Self, PageProblem> {
        let Asking(caller) = Asking::from_request_parts(parts, served).await?;
        Ok(Self(caller))
    }
}

// === impl PageProblem ===

impl From<Problem> for PageProblem {
    fn from(problem: Problem) -> Self {
        Self(problem)
    }
}

impl IntoResponse for PageProblem {
    fn into_response(self) -> Response {
        let Self(problem) = self;
        if problem.status == 401 {
            return Redirect::to("/login").into_response();
        }
        let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let page = ProblemPage { place: "", title: problem.title, detail: problem.detail.clone() };
        match page.render() {
            Ok(html) => (status, Html(html)).into_response(),
            Err(_) => problem.into_response(),
        }
    }
}
