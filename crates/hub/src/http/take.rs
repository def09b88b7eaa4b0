//! The handlers of forwarded reports.

use axum::Json;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header;

use super::api::{BatchAnswer, packing};
use super::asking::Asking;
use super::{Answer, Served};
use crate::hub::Receipt;
use crate::limits::permit;
use crate::receive::MAX_REPORT;
use crate::take::{CloudEvent, MAX_CONSOLE};
use crate::unpack::unpack;

/// Maximum size of an event: a report with its attributes, possibly in base64.
const MAX_EVENT: usize = MAX_REPORT / 2 * 3;

pub(super) async fn event(
    State(served): State<Served>,
    Asking(caller): Asking,
    request: Request,
) -> Answer<Receipt> {
    caller.may_report()?;
    let (parts, content) = request.into_parts();
    let packing = packing(&parts.headers)?;
    let text = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let kind = text(header::CONTENT_TYPE.as_str()).unwrap_or_default();
    let content = served.bodies.read(&caller, content, MAX_EVENT).await?;
    let permit = permit(&served.hub.relayed, &caller, "too many events are being processed").await?;
    let event = CloudEvent::read(&kind, text, &unpack(packing, &content, MAX_EVENT)?)?;
    drop(content);
    served.hub.event(permit, &caller, event).await.map(Json)
}

pub(super) async fn console(
    State(served): State<Served>,
    Asking(caller): Asking,
    content: Body,
) -> Answer<BatchAnswer> {
    caller.may_report()?;
    let content = served.console_bodies.read(&caller, content, MAX_CONSOLE).await?;
    let results = served.hub.console(&caller, content).await?;
    Ok(Json(BatchAnswer { results }))
}
