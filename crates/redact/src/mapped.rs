//! A text derived from another one, with the origin of each part.

/// A text with its notation resolved, and the offset of each byte in the original.
#[derive(Debug, Default)]
pub(crate) struct Mapped {
    pub(crate) text: Vec<u8>,
    jumps: Vec<Jump>,
    /// The offset in the original of the byte after the text, without and with the omitted parts.
    expected: usize,
    end: usize,
}

/// An offset of the text at which the original continues elsewhere.
#[derive(Clone, Copy, Debug)]
struct Jump {
    text: usize,
    /// Offsets at which the original stopped and continues.
    from: usize,
    to: usize,
    /// The original continues in another frame: the bytes between are not part of a hit that spans this
    /// boundary.
    is_break: bool,
}

// === impl Mapped ===

impl Mapped {
    pub(crate) fn with_capacity(capacity: usize) -> Self {
        Self { text: Vec::with_capacity(capacity), ..Self::default() }
    }

    /// Copies a range of the original.
    pub(crate) fn keep(&mut self, original: &[u8], start: usize, end: usize) {
        if start < end {
            self.jump_to(start);
            self.text.extend_from_slice(&original[start..end]);
            (self.expected, self.end) = (end, end);
        }
    }

    /// Adds a byte encoded as `len` bytes at `at` of the original.
    pub(crate) fn put(&mut self, byte: u8, at: usize, len: usize) {
        self.jump_to(at);
        self.text.push(byte);
        (self.expected, self.end) = (at + 1, at + len);
    }

    /// Records that the next byte comes from another frame.
    pub(crate) fn begin_frame(&mut self, at: usize) {
        self.jumps.push(Jump { text: self.text.len(), from: self.end, to: at, is_break: true });
        (self.expected, self.end) = (at, at);
    }

    fn jump_to(&mut self, at: usize) {
        if at != self.expected || at != self.end {
            self.jumps.push(Jump { text: self.text.len(), from: self.end, to: at, is_break: false });
        }
    }

    /// Returns the same text for an original that is preceded by `start` more bytes.
    pub(crate) fn shifted(mut self, start: usize) -> Self {
        for jump in &mut self.jumps {
            (jump.from, jump.to) = (jump.from + start, jump.to + start);
        }
        if self.jumps.first().is_none_or(|jump| jump.text > 0) {
            self.jumps.insert(0, Jump { text: 0, from: start, to: start, is_break: false });
        }
        (self.expected, self.end) = (self.expected + start, self.end + start);
        self
    }

    /// Returns whether the text contains a line of the original in modified form.
    pub(crate) fn changes(&self, start: usize, end: usize) -> bool {
        let first = self.jumps.partition_point(|jump| jump.to <= start);
        self.jumps.get(first).is_some_and(|jump| jump.to <= end)
    }

    /// Returns the offset in the original of a byte of the text.
    pub(crate) fn origin(&self, at: usize) -> usize {
        let before = self.jumps.partition_point(|jump| jump.text <= at);
        let (text, original) =
            before.checked_sub(1).map_or((0, 0), |last| (self.jumps[last].text, self.jumps[last].to));
        original + (at - text)
    }

    /// Returns the range in the original of a range of the text, without the parts omitted at either end.
    pub(crate) fn range(&self, start: usize, end: usize) -> (usize, usize) {
        let origin = self.origin(start);
        (origin, if start < end { self.end_of(end) } else { origin })
    }

    /// Like [`Self::range`], with one range per frame.
    pub(crate) fn parts(&self, start: usize, end: usize) -> impl Iterator<Item = (usize, usize)> {
        let first = self.jumps.partition_point(|jump| jump.text <= start);
        let last = first + self.jumps[first..].partition_point(|jump| jump.text < end);
        let breaks = self.jumps[first..last].iter().filter(|jump| jump.is_break).map(|jump| jump.text);
        let mut from = start;
        breaks.chain([end]).map(move |to| self.range(std::mem::replace(&mut from, to), to))
    }

    /// Returns the offset in the original at which the text before `end` stops.
    fn end_of(&self, end: usize) -> usize {
        if end == self.text.len() {
            return self.end;
        }
        let first = self.jumps.partition_point(|jump| jump.text < end);
        match self.jumps.get(first) {
            Some(jump) if jump.text == end => jump.from,
            _ => self.origin(end - 1) + 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_found_again_in_the_original() {
        let original = b"a%20b | c";
        let mut mapped = Mapped::default();
        mapped.keep(original, 0, 1);
        mapped.put(b' ', 1, 3);
        mapped.keep(original, 4, 5);
        mapped.begin_frame(8);
        mapped.keep(original, 8, 9);
        assert_eq!(mapped.text, b"a bc");
        assert!(mapped.changes(0, 5) && !mapped.changes(4, 7));
        assert_eq!(mapped.range(0, 1), (0, 1));
        assert_eq!(mapped.range(1, 2), (1, 4));
        assert_eq!(mapped.range(2, 3), (4, 5));
        assert_eq!(mapped.parts(0, 4).collect::<Vec<_>>(), [(0, 5), (8, 9)]);
        assert_eq!(mapped.parts(3, 4).collect::<Vec<_>>(), [(8, 9)]);
    }
}
