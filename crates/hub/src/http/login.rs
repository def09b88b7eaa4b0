//! Browser login: a token in a cookie that scripts cannot read and other sites cannot send.

use askama::Template;
use axum::body::Body;
use axum::extract::{FromRequest as _, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{Html, IntoResponse as _, Redirect, Response};
use axum::routing::{get, post};
use axum::{Form, Router};
use jiff::Timestamp;
use serde::Deserialize;

use super::Served;
use super::asking::{self, COOKIE, Connection};
use crate::problem::Problem;
use crate::token::Holder;

/// Maximum size of the form, which has one field.
const MAX_FORM: usize = 8 << 10;

#[derive(Template)]
#[template(path = "login.html")]
struct LoginPage {
    wrong: bool,
    /// The user that is already logged in.
    known: Option<String>,
}

#[derive(Deserialize)]
struct LoginForm {
    token: String,
}

pub(super) fn router() -> Router<Served> {
    Router::new().route("/login", get(form).post(login)).route("/logout", post(logout))
}

async fn form(State(served): State<Served>, headers: HeaderMap) -> Result<Response, Problem> {
    let known = asking::token(&headers).and_then(|token| viewer(&served, token));
    page(false, known)
}

/// Returns the subject of the token. Node tokens do not permit access to pages.
fn viewer(served: &Served, token: &str) -> Option<String> {
    let holder = served.hub.access.tokens.as_ref()?.check(token, Timestamp::now()).ok()?;
    match holder {
        Holder::Operator(name) | Holder::Viewer(name) => Some(name),
        Holder::Node(_) | Holder::Nodes(_) => None,
    }
}

fn page(wrong: bool, known: Option<String>) -> Result<Response, Problem> {
    let html = LoginPage { wrong, known }
        .render()
        .map_err(|_| Problem::new(500, "Defect", "the page cannot be made"))?;
    let status = if wrong { StatusCode::UNAUTHORIZED } else { StatusCode::OK };
    Ok((status, Html(html)).into_response())
}

async fn login(State(served): State<Served>, request: Request) -> Result<Response, Problem> {
    let (parts, content) = request.into_parts();
    let address = parts.extensions.get::<Connection>().map(|connection| connection.peer);
    let content = served.bodies.read_unauthenticated(address, content, MAX_FORM).await?;
    let request = Request::from_parts(parts, Body::from(content));
    let form = Form::<LoginForm>::from_request(request, &()).await;
    let Ok(Form(LoginForm { token })) = form else { return page(true, None) };
    let token = token.trim();
    if viewer(&served, token).is_none() {
        return page(true, None);
    }
    let cookie = format!("{COOKIE}={token}; Path=/; Secure; HttpOnly; SameSite=Strict");
    Ok(([(header::SET_COOKIE, cookie)], Redirect::to("/")).into_response())
}

async fn logout() -> Response {
    let cookie = format!("{COOKIE}=; Path=/; Secure; HttpOnly; SameSite=Strict; Max-Age=0");
    ([(header::SET_COOKIE, cookie)], Redirect::to("/login")).into_response()
}
