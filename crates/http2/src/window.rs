use super::Http2Error;
use super::frame::{DEFAULT_WINDOW, LARGEST_WINDOW};

/// The receive window: bytes that the peer may still send, and consumed bytes not yet announced.
#[derive(Debug)]
pub(super) struct Inbound {
    size: i64,
    left: i64,
    released: i64,
}

/// The send window. It can be negative after the peer has reduced its initial window size.
#[derive(Debug)]
pub(super) struct Outbound(i64);

// === impl Inbound ===

impl Inbound {
    pub(super) fn new(size: i64) -> Self {
        Self { size, left: size, released: 0 }
    }

    pub(super) fn receive(&mut self, length: usize) -> Result<(), Http2Error> {
        self.left -= i64::try_from(length).unwrap_or(i64::MAX);
        if self.left < 0 { Err(Http2Error::flow("more data than the window allows")) } else { Ok(()) }
    }

    /// Returns the increment to announce, if any: small increments accumulate.
    #[must_use]
    pub(super) fn release(&mut self, length: usize) -> Option<u32> {
        self.released += i64::try_from(length).unwrap_or(0);
        if self.released * 2 < self.size { None } else { self.announce() }
    }

    /// Increases the window immediately.
    #[must_use]
    pub(super) fn grow(&mut self, size: i64) -> Option<u32> {
        let more = size.min(LARGEST_WINDOW) - self.size;
        if more <= 0 {
            return None;
        }
        self.size += more;
        self.released += more;
        self.announce()
    }

    fn announce(&mut self) -> Option<u32> {
        let increment = u32::try_from(self.released).ok().filter(|increment| *increment > 0)?;
        self.left += self.released;
        self.released = 0;
        Some(increment)
    }
}

// === impl Outbound ===

impl Outbound {
    pub(super) fn new(size: i64) -> Self {
        Self(size)
    }

    pub(super) fn available(&self) -> usize {
        usize::try_from(self.0).unwrap_or(0)
    }

    pub(super) fn send(&mut self, length: usize) {
        self.0 -= i64::try_from(length).unwrap_or(0);
    }

    /// Changes the window by an update or a new initial size; leaving its range is an error.
    pub(super) fn change(&mut self, by: i64) -> Result<(), Http2Error> {
        self.0 += by;
        if self.0 > LARGEST_WINDOW { Err(Http2Error::flow("a window larger than allowed")) } else { Ok(()) }
    }
}

impl Default for Outbound {
    fn default() -> Self {
        Self(DEFAULT_WINDOW)
    }
}
