//! Server-sent events: open pages are notified of a change and reload their content.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse as _, Response};
use landfall_model::chain;
use landfall_net::serve::CallerSemaphore;
use tokio::sync::watch;

use super::Served;
use super::asking::Asking;
use crate::access::{Caller, Wish};
use crate::limits::{EVENT_STREAMS, permit};
use crate::problem::Problem;
use crate::store::Store;

/// Interval between polls of the store; determines how soon open pages show a change.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Minimum interval between two notifications, so that a busy fleet does not make pages flicker.
const CALM: Duration = Duration::from_secs(1);
/// Proxies close connections that are idle for a minute.
const KEEP_ALIVE: Duration = Duration::from_secs(20);

/// Source of events for open pages.
#[derive(Clone, Debug)]
pub(crate) struct Events {
    version: watch::Receiver<u64>,
    slots: Arc<CallerSemaphore<Caller>>,
}

// === impl Events ===

impl Events {
    /// Polls the store until the returned future is dropped.
    pub(crate) fn watch(store: Arc<dyn Store>) -> (Self, impl Future<Output = ()> + Send) {
        let (sender, version) = watch::channel(0);
        let looking = async move {
            loop {
                let pause = match store.version().await {
                    Ok(version) => {
                        let changed =
                            sender.send_if_modified(|known| std::mem::replace(known, version) != version);
                        if changed { CALM } else { LOOK_EVERY }
                    }
                    Err(error) => {
                        tracing::warn!(error = %chain(&error), "polling for changes failed");
                        CALM
                    }
                };
                tokio::time::sleep(pause).await;
            }
        };
        (Self { version, slots: Arc::new(CallerSemaphore::new(EVENT_STREAMS)) }, looking)
    }
}

pub(super) async fn events(
    State(served): State<Served>,
    Asking(caller): Asking,
) -> Result<Response, Problem> {
    caller.may(Wish::See)?;
    let slot = permit(&served.events.slots, &caller, "too many pages listen").await?;
    let start = (served.events.version.clone(), slot);
    let stream = futures_util::stream::unfold(start, async |(mut version, slot)| {
        version.changed().await.ok()?;
        let number = *version.borrow_and_update();
        Some((
            Ok::<_, Infallible>(Event::default().event("changed").data(number.to_string())),
            (version, slot),
        ))
    });
    Ok(Sse::new(stream).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response())
}
