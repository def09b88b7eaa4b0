//! The handlers of in-place bootstraps.

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};

use super::api::node_name;
use super::asking::Asking;
use super::{Answer, Served};
use crate::progress::{MAX_PROGRESS, NodeProgress, ProgressLines, ProgressReceipt};

pub(super) async fn take(
    State(served): State<Served>,
    Asking(caller): Asking,
    Path(name): Path<String>,
    content: Body,
) -> Answer<ProgressReceipt> {
    let content = served.bodies.read(&caller, content, MAX_PROGRESS).await?;
    served.hub.take_progress(&caller, node_name(name)?, &content).await.map(Json)
}

pub(super) async fn of_node(
    State(served): State<Served>,
    Asking(caller): Asking,
    Path(name): Path<String>,
) -> Answer<NodeProgress> {
    served.hub.progress(&caller, node_name(name)?).await.map(Json)
}

pub(super) async fn all(State(served): State<Served>, Asking(caller): Asking) -> Answer<ProgressLines> {
    served.hub.progress_lines(&caller).await.map(Json)
}
