//! Candidate lines of one kind in a chunk: the first and the last ones are confirmed, those between are
//! counted.

use std::collections::VecDeque;

use super::{Chunk, Engine, PatternId};
use crate::hits::{Hit, Hits, KEPT};
use crate::pattern;

/// Candidates among which the last [`KEPT`] lines of a chunk are found. Chunks from our readers have fewer
/// lines, so lines of other origins cannot displace valid ones.
const TAIL_CANDIDATES: usize = 1 << 15;

/// Candidates of an accepted origin that are confirmed at the end of a chunk.
const CONFIRMED: usize = 64;

/// Candidate lines of one kind in a chunk.
#[derive(Default)]
pub(super) struct Candidates {
    pub(super) last_start: Option<usize>,
    hits: Hits,
    foreign: Hits,
    /// Line number, start and end of unconfirmed lines after the first [`KEPT`] confirmed ones.
    tail: VecDeque<(u64, usize, usize)>,
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
        }
        self.tail.push_back(place);
    }

    fn keep(&mut self, engine: &Engine, id: PatternId, hit: Hit) {
        let hits = if engine.accepts(id, hit.origin) {
            &mut self.hits
        } else {
            // One is sufficient for display.
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
        let counts = |start: usize, line| engine.accepts(id, engine.writer(chunk, start, line).origin);
        let mut confirmed = 0;
        let mut tail = std::mem::take(&mut self.tail);
        while confirmed < CONFIRMED
            && let Some((number, start, end)) = tail.pop_back()
        {
            let line = chunk.line(start, end);
            if self.hits.last.len() == KEPT {
                confirmed += 1;
                let is_counted = counts(start, line) && pattern.confirms(&pattern::unescaped(line));
                self.hits.count += u64::from(is_counted);
                continue;
            }
            // Lines of other origins, and lines that only quote the words, must not displace the last valid
            // ones.
            if !counts(start, line) {
                continue;
            }
            let hit = engine.confirm(id, chunk, (number, start, end));
            if let Some(hit) = hit.filter(|hit| engine.accepts(id, hit.origin)) {
                confirmed += 1;
                self.hits.last.push_front(hit);
                self.hits.count += 1;
            }
        }
        // Lines in between are counted by origin without confirmation: the head and the tail of the run were
        // confirmed. Lines beyond the last `TAIL_CANDIDATES` are unknown, so the count is a minimum.
        let between = tail.iter().filter(|(_, start, end)| counts(*start, chunk.line(*start, *end)));
        self.hits.count += between.count() as u64;
        (self.hits, self.foreign)
    }
}
