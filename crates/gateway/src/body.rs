//! What an answer's body is made of.

use std::error::Error;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use tokio::sync::mpsc;
use tokio_util::sync::WaitForCancellationFutureOwned;

use crate::upstream::Returning;

pub(crate) type BoxError = Box<dyn Error + Send + Sync>;

/// An answer's body.
pub(crate) enum Body {
    Text(Option<Bytes>),
    /// From the API server, as it comes.
    Forwarded(Forwarded),
    /// From a task of ours. The sender says at the end whether it was all.
    Fed(mpsc::Receiver<Result<Bytes, BoxError>>),
}

pub(crate) struct Forwarded {
    incoming: Incoming,
    /// Ends the body as if all had been said: a watcher then asks again where it left off.
    end: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    ended: bool,
    /// Given back at the end.
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
                        // What ends a watch is for its client the same: it asks again.
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
    /// A body of known length ends with its last frame, and nobody may ask for another.
    fn give_back_at_end(&mut self) {
        if (self.ended || self.incoming.is_end_stream())
            && let Some(returning) = self.returning.take()
        {
            returning.done();
        }
    }
}
