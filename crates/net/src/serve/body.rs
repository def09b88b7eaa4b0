//! Request bodies.
//!
//! Clients that send slowly are rejected. Each minute is checked only after it ends, while the handler waits for the
//! client. A slow server therefore does not reject a client.
//!
//! Over HTTP/2 a body that the handler does not read is reset. That is allowed, but curl before 8 then reports a broken
//! stream instead of the response with the reason for rejecting an upload. The server therefore reads the rest of the
//! body, up to a limit.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::time::{Instant, Sleep};

const MINUTE: Duration = Duration::from_secs(60);
/// Bytes read after the response.
const MAX_DRAIN: usize = 8 << 20;
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// A request body with a minimum rate. Over HTTP/2 its unread rest is drained when it is dropped.
#[derive(Debug)]
pub struct RequestBody {
    body: Option<Incoming>,
    is_http2: bool,
    min_rate: usize,
    /// Bytes received in the current minute.
    received: usize,
    /// The end of the current minute. The first one begins when the handler waits.
    minute: Option<Pin<Box<Sleep>>>,
}

#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    #[error("the connection broke")]
    Connection(#[source] hyper::Error),
    #[error("the client sent less than {} KiB in a minute", .min_rate >> 10)]
    Slow { min_rate: usize },
}

// === impl RequestBody ===

impl RequestBody {
    pub(super) fn new(body: Incoming, is_http2: bool, min_rate: usize) -> Self {
        Self { body: Some(body), is_http2, min_rate, received: 0, minute: None }
    }

    /// Resolves when a minute ends with too few bytes.
    fn poll_slow(&mut self, context: &mut Context<'_>) -> Poll<BodyError> {
        let minute = self.minute.get_or_insert_with(|| Box::pin(tokio::time::sleep(MINUTE)));
        loop {
            ready!(minute.as_mut().poll(context));
            if self.received < self.min_rate {
                return Poll::Ready(BodyError::Slow { min_rate: self.min_rate });
            }
            self.received = 0;
            minute.as_mut().reset(Instant::now() + MINUTE);
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        let frame = Pin::new(body).poll_frame(context);
        match &frame {
            Poll::Ready(Some(Ok(frame))) => self.received += frame.data_ref().map_or(0, Bytes::len),
            Poll::Ready(None | Some(Err(_))) => self.body = None,
            Poll::Pending => return self.poll_slow(context).map(|error| Some(Err(error))),
        }
        frame.map_err(BodyError::Connection)
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
