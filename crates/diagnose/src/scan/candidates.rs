//! Lines of a chunk that may be of one kind: the first and the last ones are confirmed, those between are counted.

use std::collections::VecDeque;

use super::{Chunk, Engine, PatternId};
use crate::hits::{Hit, Hits, KEPT};
use crate::pattern;

/// Candidates among which the last [`KEPT`] lines of a chunk are found. A chunk of the readers has fewer lines, so that lines of other
/// origins push out none that count.
const TAIL_CANDIDATES: usize = 1 << 15;

/// Candidates of an accepted origin that are confirmed at the end of a chunk.
const CONFIRMED: usize = 64;

/// Lines of a chunk that may be of one kind.
#[derive(Default)]
pub(super) struct Candidates {
    pub(super) last_start: Option<usize>,
    hits: Hits,
    foreign: Hits,
    /// Line number, start and end of lines seen after the first [`KEPT`] were confirmed; not yet confirmed.
    tail: VecDeque<(u64, usize, usize)>,
    skipped: u64,
}

// === impl Candidates ===

impl Candidates {
    pub(super) fn see(
        &mut self,
        engine: &Engine,
        id: PatternId,
        chunk: &Chunk<'_>,
        place: (u64, usize, usize),
    ) {
        if self.hits.first.len() < KEPT {
            if let Some(hit) = engine.confirm(id, chunk, place) {
                self.keep(engine, id, hit);
            }
            return;
        }
        if self.tail.len() == TAIL_CANDIDATES {
            self.tail.pop_front();
            self.skipped += 1;
        }
        self.tail.push_back(place);
    }

    fn keep(&mut self, engine: &Engine, id: PatternId, hit: Hit) {
        let hits = if engine.accepts(id, hit.origin) {
            &mut self.hits
        } else {
            // One is enough to show.
            if self.foreign.count > 0 {
                self.foreign.count += 1;
                return;
            }
            &mut self.foreign
        };
        hits.first.push(hit);
        hits.count += 1;
    }

    pub(super) fn finish(mut self, engine: &Engine, id: PatternId, chunk: &Chunk<'_>) -> (Hits, Hits) {
        let Some(pattern) = engine.pattern(id) else { return (self.hits, self.foreign) };
        let mut confirmed = 0;
        let mut tail = std::mem::take(&mut self.tail);
        while confirmed < CONFIRMED
            && let Some((number, start, end)) = tail.pop_back()
        {
            let line = chunk.line(start, end);
            if self.hits.last.len() == KEPT {
                confirmed += 1;
                self.hits.count += u64::from(pattern.confirms(&pattern::unescaped(line)));
                continue;
            }
            // Lines of other origins, and lines that only quote the words, do not push out the last ones that count.
            if !engine.accepts(id, engine.writer(chunk, start, line).origin) {
                continue;
            }
            let hit = engine.confirm(id, chunk, (number, start, end));
            if let Some(hit) = hit.filter(|hit| engine.accepts(id, hit.origin)) {
                confirmed += 1;
                self.hits.last.push_front(hit);
                self.hits.count += 1;
            }
        }
        // Lines between are counted without being confirmed: the head and the tail of the run were.
        self.hits.count += self.skipped + tail.len() as u64;
        (self.hits, self.foreign)
    }
}
