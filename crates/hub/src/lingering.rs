//! What is sent along with a request that was answered before it was read.
//!
//! Over HTTP/2 a body nobody reads is reset. That is allowed, and yet curl before 8 then tells its user of a broken stream and
//! not of the answer, which says why an upload was refused. So the rest is taken in, up to a bound.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::{Body, Frame, Incoming, SizeHint};

/// What is taken in after the answer: who sends more has time to read it before.
const MAX_REST: usize = 8 << 20;
const PATIENCE: Duration = Duration::from_secs(5);

/// A body of which the rest is read when nobody else does.
#[derive(Debug)]
pub(crate) struct Lingering(Option<Incoming>);

// === impl Lingering ===

impl Lingering {
    pub(crate) fn new(body: Incoming) -> Self {
        Self(Some(body))
    }
}

impl Body for Lingering {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Some(body) = &mut self.0 else { return Poll::Ready(None) };
        let frame = Pin::new(body).poll_frame(context);
        if matches!(frame, Poll::Ready(None | Some(Err(_)))) {
            self.0 = None;
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.0.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.0.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}

impl Drop for Lingering {
    fn drop(&mut self) {
        let Some(body) = self.0.take().filter(|body| !body.is_end_stream()) else { return };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(tokio::time::timeout(PATIENCE, rest(body)));
    }
}

async fn rest(mut body: Incoming) {
    let mut taken = 0;
    while let Some(Ok(frame)) = body.frame().await {
        taken += frame.data_ref().map_or(0, Bytes::len);
        if taken > MAX_REST {
            return;
        }
    }
}
