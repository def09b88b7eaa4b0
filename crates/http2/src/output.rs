use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf as _, Bytes, BytesMut};

/// Below this size, copying is cheaper than another entry in a vectored write.
const COPY_BELOW: usize = 1024;
/// Maximum buffer capacity of an idle connection.
const IDLE_CAPACITY: usize = 512;

/// Bytes to write: small writes share one buffer, payloads are not copied.
#[derive(Debug, Default)]
pub struct Output {
    chunks: VecDeque<Bytes>,
    /// Bytes after the last chunk.
    tail: BytesMut,
    length: usize,
}

// === impl Output ===

impl Output {
    pub fn len(&self) -> usize {
        self.length
    }

    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Fills `slices` with the next bytes to write and returns the number of slices.
    pub fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let tail = (!self.tail.is_empty()).then_some(&self.tail[..]);
        let all = self.chunks.iter().map(|chunk| &chunk[..]).chain(tail);
        let mut count = 0;
        for (slot, bytes) in slices.iter_mut().zip(all) {
            *slot = IoSlice::new(bytes);
            count += 1;
        }
        count
    }

    /// Removes the first `written` bytes.
    pub fn advance(&mut self, mut written: usize) {
        self.length -= written;
        while let Some(first) = self.chunks.front_mut() {
            if written < first.len() {
                first.advance(written);
                return;
            }
            written -= first.len();
            self.chunks.pop_front();
        }
        self.tail.advance(written);
        if self.tail.is_empty() && self.tail.capacity() > IDLE_CAPACITY {
            self.tail = BytesMut::new();
        }
        if self.chunks.is_empty() && self.chunks.capacity() > IDLE_CAPACITY / size_of::<Bytes>() {
            self.chunks = VecDeque::new();
        }
    }

    /// Runs `write` on the buffer of small writes.
    pub(super) fn with_tail(&mut self, write: impl FnOnce(&mut BytesMut)) {
        let before = self.tail.len();
        write(&mut self.tail);
        self.length += self.tail.len() - before;
    }

    pub(super) fn push(&mut self, bytes: Bytes) {
        if bytes.len() < COPY_BELOW {
            self.with_tail(|tail| tail.extend_from_slice(&bytes));
            return;
        }
        self.length += bytes.len();
        if !self.tail.is_empty() {
            self.chunks.push_back(self.tail.split().freeze());
        }
        self.chunks.push_back(bytes);
    }
}
