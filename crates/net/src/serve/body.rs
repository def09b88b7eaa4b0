//! Request bodies.
//!
//! Over HTTP/2 a body that the handler does not read is reset. That is allowed, but curl before 8 then reports a broken
//! stream instead of the response with the reason for rejecting an upload. The server therefore reads the rest of the
//! body, up to a limit.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::Version;
use hyper::body::{Body, Frame, Incoming, SizeHint};

/// Bytes read after the response.
const MAX_DRAIN: usize = 8 << 20;
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// A request body. Over HTTP/2 its unread rest is drained when it is dropped.
#[derive(Debug)]
pub struct RequestBody {
    body: Option<Incoming>,
    is_http2: bool,
}

// === impl RequestBody ===

impl RequestBody {
    pub(super) fn new(body: Incoming, version: Version) -> Self {
        Self { body: Some(body), is_http2: version == Version::HTTP_2 }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        let frame = Pin::new(body).poll_frame(context);
        if matches!(frame, Poll::Ready(None | Some(Err(_)))) {
            self.body = None;
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        let unread = self.body.take().filter(|body| self.is_http2 && !body.is_end_stream());
        let Some(body) = unread else { return };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(tokio::time::timeout(DRAIN_TIMEOUT, drain(body)));
    }
}

async fn drain(mut body: Incoming) {
    let mut drained = 0;
    while let Some(Ok(frame)) = body.frame().await {
        drained += frame.data_ref().map_or(0, Bytes::len);
        if drained > MAX_DRAIN {
            return;
        }
    }
}
