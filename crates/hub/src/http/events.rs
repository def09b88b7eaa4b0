//! Server-sent events: open pages are notified of a change and reload their content.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse as _, Response};
use landfall_model::chain;
use tokio::sync::{Semaphore, watch};

use super::Served;
use super::asking::Asking;
use crate::access::Wish;
use crate::problem::Problem;
use crate::store::Store;

/// Maximum number of concurrent event streams. A further page gets 503 and works without events.
const MAX_LISTENERS: usize = 1000;
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
    places: Arc<Semaphore>,
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
                        tracing::warn!(error = %chain(&error), "Changes could not be looked for.");
                        CALM
                    }
                };
                tokio::time::sleep(pause).await;
            }
        };
        (Self { version, places: Arc::new(Semaphore::new(MAX_LISTENERS)) }, looking)
    }
}

pub(super) async fn events(
    State(served): State<Served>,
    Asking(caller): Asking,
) -> Result<Response, Problem> {
    caller.may(Wish::See)?;
    let place = Arc::clone(&served.events.places).try_acquire_owned();
    let place = place.map_err(|_| Problem::new(503, "Try again later", "too many pages listen"))?;
    let start = (served.events.version.clone(), place);
    let stream = futures_util::stream::unfold(start, async |(mut version, place)| {
        version.changed().await.ok()?;
        let number = *version.borrow_and_update();
        Some((
            Ok::<_, Infallible>(Event::default().event("changed").data(number.to_string())),
            (version, place),
        ))
    });
    Ok(Sse::new(stream).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response())
}
