//! Splits a byte stream into chunks of complete lines.

use std::io::{self, Read};

use landfall_diagnose::EntryOrigin;
use memchr::{memchr, memrchr};

/// Large enough to amortize the fixed costs of a chunk, small enough that many fit into a CPU cache.
pub(super) const CHUNK: usize = 1024 * 1024;

/// Complete lines, and their origins if the reader knows them.
#[derive(Debug, Default)]
pub(super) struct Chunk {
    pub(super) bytes: Vec<u8>,
    pub(super) origins: Option<Vec<EntryOrigin>>,
}

/// A source of lines, chunk by chunk.
pub(super) trait Chunks {
    /// Returns the next chunk and the number of bytes read for it; `None` at the end.
    fn next(&mut self) -> io::Result<Option<(Chunk, u64)>>;

    /// Returns the number of lines that were too long for a chunk and therefore truncated.
    fn cut(&self) -> u64 {
        0
    }
}

/// Chunks of complete lines from a reader.
///
/// A line longer than a chunk is truncated: no relevant message is longer, and memory stays bounded for any
/// input.
#[derive(Debug)]
pub(super) struct LineChunks<R> {
    reader: R,
    /// Bytes of the line that did not fit completely into the last chunk.
    rest: Vec<u8>,
    /// Whether the current position is inside a truncated line.
    skipping: bool,
    /// Number of truncated lines.
    cut: u64,
    ended: bool,
    /// The error that ended the stream, returned after all data read before it.
    failure: Option<io::Error>,
}

// === impl LineChunks ===

impl<R: Read> LineChunks<R> {
    pub(super) fn new(reader: R) -> Self {
        Self { reader, rest: Vec::new(), skipping: false, cut: 0, ended: false, failure: None }
    }

    fn next_lines(&mut self) -> io::Result<Option<(Vec<u8>, u64)>> {
        let mut taken = 0;
        while !self.ended {
            let mut chunk = std::mem::take(&mut self.rest);
            let held = chunk.len();
            chunk.reserve_exact(CHUNK - held);
            // Data read before a failure is returned first.
            let result = self.reader.by_ref().take((CHUNK - held) as u64).read_to_end(&mut chunk);
            self.failure = result.err();
            let filled = chunk.len();
            self.ended = filled < CHUNK;
            taken += (filled - held) as u64;

            if self.skipping {
                match memchr(b'\n', &chunk) {
                    Some(end) => {
                        chunk.drain(..=end);
                        self.skipping = false;
                    }
                    None => continue,
                }
            }
            if !self.ended {
                match memrchr(b'\n', &chunk) {
                    Some(end) => {
                        self.rest = chunk.split_off(end + 1);
                    }
                    None if chunk.len() < CHUNK => {
                        // The end of a skipped line left space: continue reading before returning the chunk.
                        self.rest = chunk;
                        continue;
                    }
                    None => {
                        self.skipping = true;
                        self.cut += 1;
                    }
                }
            }
            if chunk.is_empty() {
                continue;
            }
            return Ok(Some((chunk, taken)));
        }
        self.failure.take().map_or(Ok(None), Err)
    }
}

impl<R: Read> Chunks for LineChunks<R> {
    fn next(&mut self) -> io::Result<Option<(Chunk, u64)>> {
        let next = self.next_lines()?;
        Ok(next.map(|(bytes, read)| (Chunk { bytes, origins: None }, read)))
    }

    fn cut(&self) -> u64 {
        self.cut
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunks(input: &[u8]) -> Vec<Vec<u8>> {
        let mut reader = LineChunks::new(input);
        let mut all = Vec::new();
        while let Some((chunk, _)) = reader.next_lines().unwrap() {
            all.push(chunk);
        }
        all
    }

    #[test]
    fn small_inputs_come_whole() {
        assert_eq!(chunks(b""), Vec::<Vec<u8>>::new());
        assert_eq!(chunks(b"one\ntwo"), [b"one\ntwo"]);
        assert_eq!(chunks(b"\n\n"), [b"\n\n"]);
    }

    #[test]
    fn chunks_end_at_line_ends_and_lose_nothing() {
        let line = [b'x'; 999].into_iter().chain([b'\n']).collect::<Vec<u8>>();
        let input = line.repeat(5000);
        let chunks = chunks(&input);
        assert!(chunks.len() > 3);
        assert!(chunks.iter().all(|chunk| chunk.ends_with(b"\n") && chunk.len() <= CHUNK));
        assert_eq!(chunks.concat(), input);
    }

    #[test]
    fn an_overlong_line_is_cut_and_the_next_line_survives() {
        for length in [CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK - 1, 3 * CHUNK, 3 * CHUNK + 7] {
            let mut input = b"before\n".to_vec();
            input.extend(std::iter::repeat_n(b'x', length));
            input.extend_from_slice(b"\nafter\n");
            let chunks = chunks(&input);
            assert!(chunks.iter().all(|chunk| chunk.len() <= CHUNK), "length {length}");
            let text = chunks.concat();
            assert!(text.starts_with(b"before\nxxx"), "length {length}");
            assert!(text.ends_with(b"after\n"), "length {length}");
        }
    }

    #[test]
    fn lines_that_are_cut_are_counted() {
        for (length, cut) in [(10, 0), (CHUNK - 1, 0), (CHUNK + 1, 1), (3 * CHUNK, 1)] {
            let line = [&vec![b'x'; length][..], b"\n"].concat();
            let input = [&line[..], b"between\n", &line].concat();
            let mut reader = LineChunks::new(&input[..]);
            while reader.next_lines().unwrap().is_some() {}
            assert_eq!(reader.cut(), 2 * cut, "length {length}");
        }
    }

    #[test]
    fn an_endless_line_needs_no_more_than_one_chunk() {
        let mut reader = LineChunks::new(io::repeat(b'x').take(100 * CHUNK as u64));
        let (first, _) = reader.next_lines().unwrap().unwrap();
        assert_eq!(first.len(), CHUNK);
        assert!(reader.next_lines().unwrap().is_none());
    }
}
