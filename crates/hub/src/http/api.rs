//! The handlers of `/api/v1`.

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{MethodRouter, get, post, put};
use futures_util::{StreamExt as _, TryStreamExt as _};
use jiff::Timestamp;
use landfall_model::report::{Report, State as NodeState};
use landfall_model::{Cause, Phase};
use serde::{Deserialize, Serialize};
use tokio_util::io::ReaderStream;

use super::asking::Asking;
use super::{Answer, Operation, Served, events, progress, take};
use crate::access::Wish;
use crate::bundles::{LogFile, LogPage, LogQuery};
use crate::enrol;
use crate::hub::{BatchItem, CauseTrend, Found, MAX_BATCH, NewToken, NodeView};
use crate::name::NodeName;
use crate::problem::Problem;
use crate::roles::RoleHealth;
use crate::store::{BundleRecord, Fleet, FleetQuery, Group, NodePage, Turn};
use crate::token::Holder;
use crate::unpack::Packing;

/// The document generated from the table of routes by `cargo xtask gen`.
const OPENAPI: &str = include_str!("../../../../docs/reference/hub.openapi.json");

const DEFAULT_NODES: u32 = 200;
const MAX_NODES: u32 = 1000;
const DEFAULT_TURNS: u32 = 50;
const MAX_TURNS: u32 = 1000;
const DEFAULT_LINES: u32 = 200;
const DEFAULT_HOURS: u32 = 24;
const MAX_HOURS: u32 = 31 * 24;
const DEFAULT_STEPS: u32 = 24;
const MAX_STEPS: u32 = 500;
const DEFAULT_TOKEN_DAYS: u32 = 7;
/// Maximum size of a token request, which is one line.
const MAX_SMALL_BODY: usize = 16 << 10;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct FleetParameters {
    pub(super) state: String,
    pub(super) cause: String,
    pub(super) phase: String,
    pub(super) q: String,
    pub(super) limit: Option<u32>,
    pub(super) offset: Option<u32>,
}

#[derive(Deserialize)]
struct NodesParameters {
    #[serde(default)]
    after: String,
    limit: Option<u32>,
}

#[derive(Deserialize)]
pub(crate) struct HistoryParameters {
    before: Option<u64>,
    limit: Option<u32>,
}

#[derive(Deserialize)]
struct TrendParameters {
    hours: Option<u32>,
    steps: Option<u32>,
}

#[derive(Deserialize)]
struct SearchParameters {
    #[serde(default)]
    q: String,
}

#[derive(Deserialize)]
struct LineParameters {
    path: Option<String>,
    from: Option<u64>,
    count: Option<u32>,
    #[serde(default)]
    q: String,
}

/// A request for a token.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct TokenWish {
    /// `node`, `nodes`, `viewer` or `operator`.
    kind: String,
    /// Subject of the token; for `nodes` the prefix of their names, possibly empty.
    #[serde(default)]
    name: String,
    /// Validity in days, 7 by default.
    days: Option<u32>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Groups {
    groups: Vec<Group>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct History {
    turns: Vec<Turn>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct FoundList {
    found: Vec<Found>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct LogFiles {
    files: Vec<LogFile>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct BatchAnswer {
    pub(super) results: Vec<BatchItem>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct RoleList {
    roles: Vec<RoleHealth>,
}

/// Returns the handler of an operation of the table.
pub(super) fn handler(operation: Operation) -> MethodRouter<Served> {
    match operation {
        Operation::Reports => post(reports),
        Operation::Fleet => get(fleet),
        Operation::Groups => get(groups),
        Operation::Nodes => get(nodes),
        Operation::Node => get(node).delete(forget),
        Operation::History => get(history),
        Operation::PastReport => get(past_report),
        Operation::NodeBundles => post(add_bundle),
        Operation::NamedBundle => put(add_named_bundle),
        Operation::NodeProgress => get(progress::of_node).post(progress::take),
        Operation::Progress => get(progress::all),
        Operation::Roles => get(roles),
        Operation::Trend => get(trend),
        Operation::Search => get(search),
        Operation::Bundle => get(bundle),
        Operation::BundleContent => get(bundle_content),
        Operation::BundleFiles => get(bundle_files),
        Operation::BundleLines => get(bundle_lines),
        Operation::Tokens => post(new_token),
        Operation::Events => get(events::events).post(take::event),
        Operation::Console => post(take::console),
        Operation::OpenApi => get(open_api),
    }
}

async fn reports(
    State(served): State<Served>,
    Asking(caller): Asking,
    request: Request,
) -> Result<Response, Problem> {
    caller.may_report()?;
    let (parts, content) = request.into_parts();
    let packing = packing(&parts.headers)?;
    let kind =
        parts.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    match kind.as_str() {
        "application/x-ndjson" | "application/jsonl" => {
            // Acquired before the body is read: a queued body stays with its sender.
            let permit = served.hub.batch_permit(&caller).await?;
            let content = served.bodies.read(&caller, content, MAX_BATCH).await?;
            let results = served.hub.batch(permit, &caller, packing, content).await?;
            Ok(Json(BatchAnswer { results }).into_response())
        }
        "application/json" | "application/cloudevents+json" | "" => {
            let content = served.bodies.read(&caller, content, crate::receive::MAX_REPORT).await?;
            let receipt = served.hub.report(&caller, packing, content).await?;
            Ok(Json(receipt).into_response())
        }
        _ => Err(Problem::new(
            415,
            "Not understood",
            "reports are `application/json`, or `application/x-ndjson` for one per line",
        )),
    }
}

async fn fleet(
    State(served): State<Served>,
    Asking(caller): Asking,
    Query(parameters): Query<FleetParameters>,
) -> Answer<Fleet> {
    served.hub.fleet(&caller, parameters.query()?).await.map(Json)
}

async fn groups(State(served): State<Served>, Asking(caller): Asking) -> Answer<Groups> {
    let fleet = served.hub.fleet(&caller, FleetQuery::default()).await?;
    Ok(Json(Groups { groups: fleet.groups }))
}

async fn nodes(
    State(served): State<Served>,
    Asking(caller): Asking,
    Query(parameters): Query<NodesParameters>,
) -> Answer<NodePage> {
    let limit = parameters.limit.unwrap_or(DEFAULT_NODES).clamp(1, MAX_NODES);
    served.hub.nodes(&caller, parameters.after, limit).await.map(Json)
}

async fn node(
    State(served): State<Served>,
    Asking(caller): Asking,
    Path(name): Path<String>,
) -> Answer<NodeView> {
    served.hub.node(&caller, &node_name(name)?).await.map(Json)
}

async fn forget(
    State(served): State<Served>,
    Asking(caller): Asking,
    Path(name): Path<String>,
) -> Result<StatusCode, Problem> {
    served.hub.forget(&caller, &node_name(name)?).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn history(
    State(served): State<Served>,
    Asking(caller): Asking,
    Path(name): Path<String>,
    Query(parameters): Query<HistoryParameters>,
) -> Answer<History> {
    let limit = parameters.limit.unwrap_or(DEFAULT_TURNS).min(MAX_TURNS);
    let turns = served.hub.history(&caller, &node_name(name)?, parameters.before, limit).await?;
    Ok(Json(History { turns }))
}

async fn past_report(
    State(served): State<Served>,
    Asking(caller): Asking,
    Path((name, turn)): Path<(String, u64)>,
) -> Answer<Report> {
    served.hub.past_report(&caller, &node_name(name)?, turn).await.map(Json)
}

async fn add_bundle(
    State(served): State<Served>,
    Asking(caller): Asking,
    Path(name): Path<String>,
    content: Body,
) -> Answer<BundleRecord> {
    let stream = content.into_data_stream().map_err(axum::Error::into_inner);
    served.hub.take_bundle(&caller, &caller, node_name(name)?, None, stream).await.map(Json)
}

async fn add_named_bundle(
    State(served): State<Served>,
    Asking(caller): Asking,
    Path((name, digest)): Path<(String, String)>,
    headers: HeaderMap,
    content: Body,
) -> Answer<BundleRecord> {
    let node = node_name(name)?;
    let signature = headers.get(enrol::SIGNATURE).and_then(|value| value.to_str().ok());
    let sender = served.hub.sender_of_bundle(&caller, &node, &digest, signature).await?;
    let stream = content.into_data_stream().map_err(axum::Error::into_inner);
    served.hub.take_bundle(&sender, &caller, node, Some(&digest), stream).await.map(Json)
}

async fn roles(State(served): State<Served>, Asking(caller): Asking) -> Answer<RoleList> {
    caller.may(Wish::See)?;
    Ok(Json(RoleList { roles: served.hub.roles.health() }))
}

async fn trend(
    State(served): State<Served>,
    Asking(caller): Asking,
    Query(parameters): Query<TrendParameters>,
) -> Answer<CauseTrend> {
    let hours = parameters.hours.unwrap_or(DEFAULT_HOURS).clamp(1, MAX_HOURS);
    let steps = parameters.steps.unwrap_or(DEFAULT_STEPS).clamp(1, MAX_STEPS);
    let since = Timestamp::now() - jiff::SignedDuration::from_hours(i64::from(hours));
    served.hub.trend(&caller, since, hours * 3600 / steps).await.map(Json)
}

async fn search(
    State(served): State<Served>,
    Asking(caller): Asking,
    Query(parameters): Query<SearchParameters>,
) -> Answer<FoundList> {
    let found = served.hub.search(&caller, &parameters.q).await?;
    Ok(Json(FoundList { found }))
}

async fn bundle(
    State(served): State<Served>,
    Asking(caller): Asking,
    Path(digest): Path<String>,
) -> Answer<BundleRecord> {
    served.hub.bundle(&caller, &digest).await.map(Json)
}

async fn bundle_content(
    State(served): State<Served>,
    Asking(caller): Asking,
    Path(digest): Path<String>,
) -> Result<Response, Problem> {
    let (record, opened) = served.hub.open_bundle(&caller, &digest).await?;
    let (file, place) = opened.into_parts();
    let name = format!("attachment; filename=\"{}-{}.tar.gz\"", record.node, &record.digest[..12]);
    let headers = [
        (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
        (header::CONTENT_LENGTH, record.bytes.to_string()),
        (header::CONTENT_DISPOSITION, name),
    ];
    let stream = ReaderStream::new(tokio::fs::File::from_std(file)).inspect(move |_| {
        // A local copy occupies its slot until the last byte is sent.
        let _ = &place;
    });
    Ok((headers, Body::from_stream(stream)).into_response())
}

async fn bundle_files(
    State(served): State<Served>,
    Asking(caller): Asking,
    Path(digest): Path<String>,
) -> Answer<LogFiles> {
    let files = served.hub.log_files(&caller, &digest).await?;
    Ok(Json(LogFiles { files }))
}

async fn bundle_lines(
    State(served): State<Served>,
    Asking(caller): Asking,
    Path(digest): Path<String>,
    Query(parameters): Query<LineParameters>,
) -> Answer<LogPage> {
    let query = LogQuery {
        path: parameters.path,
        from: parameters.from.unwrap_or(1),
        count: parameters.count.unwrap_or(DEFAULT_LINES),
        search: parameters.q,
    };
    served.hub.log_lines(&caller, &digest, query).await.map(Json)
}

async fn new_token(State(served): State<Served>, Asking(caller): Asking, content: Body) -> Answer<NewToken> {
    let content = served.bodies.read(&caller, content, MAX_SMALL_BODY).await?;
    let wish: TokenWish =
        serde_json::from_slice(&content).map_err(|error| Problem::bad_request(error.to_string()))?;
    let holder = match wish.kind.as_str() {
        "node" => Holder::Node(wish.name),
        "nodes" => Holder::Nodes(wish.name),
        "viewer" => Holder::Viewer(wish.name),
        "operator" => Holder::Operator(wish.name),
        _ => return Err(Problem::bad_request("`kind` is `node`, `nodes`, `viewer` or `operator`")),
    };
    served.hub.new_token(&caller, holder, wish.days.unwrap_or(DEFAULT_TOKEN_DAYS)).map(Json)
}

async fn open_api(Asking(_): Asking) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], OPENAPI).into_response()
}

pub(super) fn packing(headers: &HeaderMap) -> Result<Packing, Problem> {
    let name = headers.get(header::CONTENT_ENCODING).map(|value| value.to_str().unwrap_or("?"));
    Ok(Packing::named(name)?)
}

pub(super) fn node_name(name: String) -> Result<NodeName, Problem> {
    NodeName::new(name).map_err(|error| Problem::bad_request(error.to_string()))
}

// === impl FleetParameters ===

impl FleetParameters {
    pub(super) fn query(&self) -> Result<FleetQuery, Problem> {
        let state = NodeState::ALL.into_iter().find(|state| state.name() == self.state);
        let phase = Phase::ALL.into_iter().find(|phase| phase.name() == self.phase);
        if state.is_none() && !self.state.is_empty() {
            return Err(Problem::bad_request("there is no such state"));
        }
        if phase.is_none() && !self.phase.is_empty() {
            return Err(Problem::bad_request("there is no such phase"));
        }
        let cause = (!self.cause.is_empty()).then(|| Cause::new(self.cause.as_str())).transpose();
        Ok(FleetQuery {
            state,
            cause: cause.map_err(|error| Problem::bad_request(error.to_string()))?,
            phase,
            text: self.q.trim().chars().take(200).collect(),
            limit: self.limit.unwrap_or(DEFAULT_NODES).min(MAX_NODES),
            offset: self.offset.unwrap_or(0),
        })
    }
}
