//! Bodies of responses.

use std::error::Error;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use tokio::sync::mpsc;
use tokio_util::sync::WaitForCancellationFutureOwned;

use crate::upstream::Returning;

pub(crate) type BoxError = Box<dyn Error + Send + Sync>;

pub(crate) enum Body {
    Text(Option<Bytes>),
    /// Forwarded from the API server as it arrives.
    Forwarded(Forwarded),
    /// Produced by a task of the gateway. An error as the last item marks the body as truncated.
    Fed(mpsc::Receiver<Result<Bytes, BoxError>>),
}

pub(crate) struct Forwarded {
    incoming: Incoming,
    /// Ends the body normally when it resolves; a watching client then resumes from its last resource version.
    end: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    ended: bool,
    /// Returns the connection to its pool at the end.
    returning: Option<Returning>,
}

// === impl Body ===

impl Body {
    pub(crate) fn empty() -> Self {
        Self::Text(None)
    }

    pub(crate) fn text(text: impl Into<Bytes>) -> Self {
        Self::Text(Some(text.into()))
    }

    pub(crate) fn forwarded(
        incoming: Incoming,
        end: Option<WaitForCancellationFutureOwned>,
        mut returning: Option<Returning>,
    ) -> Self {
        if incoming.is_end_stream()
            && let Some(returning) = returning.take()
        {
            returning.done();
        }
        Self::Forwarded(Forwarded { incoming, end: end.map(Box::pin), ended: false, returning })
    }
}

impl Default for Body {
    fn default() -> Self {
        Self::empty()
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut *self {
            Self::Text(text) => Poll::Ready(text.take().map(|text| Ok(Frame::data(text)))),
            Self::Fed(pieces) => {
                Poll::Ready(ready!(pieces.poll_recv(cx)).map(|piece| piece.map(Frame::data)))
            }
            Self::Forwarded(forwarded) => {
                if forwarded.ended {
                    return Poll::Ready(None);
                }
                match Pin::new(&mut forwarded.incoming).poll_frame(cx) {
                    Poll::Ready(Some(Err(error))) => {
                        forwarded.ended = true;
                        // A failed watch ends normally, too: in both cases the client starts a new one.
                        let over = forwarded.end.is_some();
                        Poll::Ready(if over { None } else { Some(Err(error.into())) })
                    }
                    Poll::Ready(Some(Ok(frame))) => {
                        forwarded.give_back_at_end();
                        Poll::Ready(Some(Ok(frame)))
                    }
                    Poll::Ready(None) => {
                        forwarded.ended = true;
                        forwarded.give_back_at_end();
                        Poll::Ready(None)
                    }
                    Poll::Pending => {
                        let Some(end) = &mut forwarded.end else { return Poll::Pending };
                        ready!(end.as_mut().poll(cx));
                        forwarded.ended = true;
                        Poll::Ready(None)
                    }
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Text(text) => text.is_none(),
            Self::Forwarded(forwarded) => forwarded.ended || forwarded.incoming.is_end_stream(),
            Self::Fed(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Text(text) => SizeHint::with_exact(text.as_ref().map_or(0, |text| text.len() as u64)),
            Self::Forwarded(forwarded) => forwarded.incoming.size_hint(),
            Self::Fed(_) => SizeHint::default(),
        }
    }
}

// === impl Forwarded ===

impl Forwarded {
    /// Returns the connection to its pool. A body of known length ends with its last frame, after which hyper may not
    /// poll it again.
    fn give_back_at_end(&mut self) {
        if (self.ended || self.incoming.is_end_stream())
            && let Some(returning) = self.returning.take()
        {
            returning.done();
        }
    }
}
