//! Activity of an HTTP/2 connection: pings do not count.
//!
//! HTTP/1 does not need this: hyper limits the time to the next request head, and `StallGuard` that of a blocked
//! response.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::{Body, Frame, SizeHint};

use super::{BoxError, ResponseBody};

#[derive(Clone, Debug, Default)]
pub(super) struct Activity(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    /// Requests whose response is not sent yet.
    requests: AtomicUsize,
    /// Requests whose response is being sent.
    sending: AtomicUsize,
    /// Grows with each request and with each piece of a response; 0 means that the connection is not HTTP/2.
    events: AtomicU64,
}

/// An increment of a counter until it is dropped.
#[derive(Debug)]
pub(super) struct InProgress(Arc<Counts>, fn(&Counts) -> &AtomicUsize);

/// A response body that counts its frames.
struct CountedBody {
    body: ResponseBody,
    sending: InProgress,
    _request: InProgress,
}

// === impl Activity ===

impl Activity {
    pub(super) fn request(&self) -> InProgress {
        InProgress::new(&self.0, |counts| &counts.requests)
    }

    /// Resolves after `limit` without activity: no new request, no running handler and no response data accepted by the
    /// client. Handlers have their own deadlines. Never resolves for HTTP/1.
    pub(super) async fn idle(&self, limit: Duration) {
        let mut last = None;
        loop {
            let events = self.0.events.load(Ordering::Relaxed);
            let working = self.0.requests.load(Ordering::Relaxed) > self.0.sending.load(Ordering::Relaxed);
            if events > 0 && last == Some(events) && !working {
                return;
            }
            last = Some(events);
            tokio::time::sleep(limit).await;
        }
    }
}

// === impl InProgress ===

impl InProgress {
    fn new(counts: &Arc<Counts>, of: fn(&Counts) -> &AtomicUsize) -> Self {
        of(counts).fetch_add(1, Ordering::Relaxed);
        counts.events.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(counts), of)
    }

    /// Wraps the body so that it counts as being sent until its end.
    pub(super) fn until_sent(self, body: ResponseBody) -> ResponseBody {
        let sending = Self::new(&self.0, |counts| &counts.sending);
        CountedBody { body, sending, _request: self }.boxed_unsync()
    }
}

// === impl CountedBody ===

impl Body for CountedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        if frame.is_ready() {
            // hyper requests a frame when it can send it, so the client accepts data.
            self.sending.0.events.fetch_add(1, Ordering::Relaxed);
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for InProgress {
    fn drop(&mut self) {
        (self.1)(&self.0).fetch_sub(1, Ordering::Relaxed);
    }
}
