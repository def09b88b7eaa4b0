//! Lists of entries: the list of all entries, and one per value ("every entry of this unit").
//!
//! A list is a chain of arrays of entry offsets. Each array is about twice as long as the previous one. A long list is
//! therefore still a short chain, and bisection finds a position within an array.

use crate::damage::Fault;
use crate::object::{Index, Objects};
use crate::source::Source;

/// Number of offsets per read when a list is followed from start to end.
const BATCH: usize = 1024;

#[derive(Debug)]
pub(crate) struct List {
    /// The entry stored before the arrays, until it is passed; 0 if there is none.
    first: u64,
    start: u64,
    /// The current array; 0 before the first one.
    array: u64,
    slots: u64,
    slot: u64,
    /// Number of remaining entries in the arrays, according to the count stored with the list.
    left: u64,
}

// === impl List ===

impl List {
    pub(crate) fn new(index: Index) -> Self {
        let inline = u64::from(index.first != 0);
        Self {
            first: index.first,
            start: index.array,
            array: 0,
            slots: 0,
            slot: 0,
            left: index.total.saturating_sub(inline),
        }
    }

    /// Returns the number of announced entries that were not reached.
    pub(crate) fn left(&self) -> u64 {
        self.left
    }

    pub(crate) fn grow(&mut self, by: u64) {
        self.left = self.left.saturating_add(by);
    }

    /// Replaces `batch` with the next entry offsets and passes them. Empty at the end.
    pub(crate) fn take<S: Source>(
        &mut self,
        objects: &mut Objects<S>,
        batch: &mut Vec<u64>,
    ) -> Result<(), Fault> {
        batch.clear();
        if self.first != 0 {
            batch.push(self.first);
            self.first = 0;
            return Ok(());
        }
        if self.enter(objects)? {
            let count = (self.slots - self.slot).min(self.left).min(BATCH as u64);
            #[expect(clippy::cast_possible_truncation, reason = "at most BATCH")]
            batch.resize(count as usize, 0);
            objects.array_slots(self.array, self.slot, batch)?;
            self.pass(count);
        }
        Ok(())
    }

    /// Advances to the first entry for which `reached` is true, without passing it. `reached` must be false for a first
    /// part of the list and true for the rest. It returns `None` for an offset that it cannot evaluate.
    pub(crate) fn advance<S: Source>(
        &mut self,
        objects: &mut Objects<S>,
        mut reached: impl FnMut(&mut Objects<S>, u64) -> Result<Option<bool>, Fault>,
    ) -> Result<Option<u64>, Fault> {
        if self.first != 0 {
            if reached(objects, self.first)? == Some(true) {
                return Ok(Some(self.first));
            }
            self.first = 0;
        }
        while self.enter(objects)? {
            let end = self.slots.min(self.slot.saturating_add(self.left));
            let mut judge = |objects: &mut Objects<S>, slot| {
                let item = objects.array_slot(self.array, slot)?;
                reached(objects, item)
            };
            // Most arrays are passed completely: check their last entry first.
            if judge(objects, end - 1)? == Some(false) {
                self.pass(end - self.slot);
                continue;
            }
            let (mut low, mut high) = (self.slot, end);
            let mut gaps = false;
            while low < high {
                let middle = low + (high - low) / 2;
                match judge(objects, middle)? {
                    Some(false) => low = middle + 1,
                    Some(true) => high = middle,
                    None => {
                        gaps = true;
                        high = middle;
                    }
                }
            }
            // Bisection stops at an offset that cannot be evaluated; from there a linear search finds the position.
            while gaps && low < end && judge(objects, low)? != Some(true) {
                low += 1;
            }
            self.pass(low - self.slot);
            if low < end {
                return objects.array_slot(self.array, low).map(Some);
            }
        }
        Ok(None)
    }

    fn pass(&mut self, count: u64) {
        self.slot += count;
        self.left -= count;
    }

    /// Ensures that there is a slot to read; returns `false` at the end of the list.
    fn enter<S: Source>(&mut self, objects: &mut Objects<S>) -> Result<bool, Fault> {
        if self.left == 0 {
            return Ok(false);
        }
        if self.slot == self.slots {
            // The link is read as late as possible: in a file being written it may have been absent before.
            let next = if self.array == 0 { self.start } else { objects.array(self.array)?.next };
            if next == 0 {
                return Ok(false);
            }
            let array = objects.array(next)?;
            (self.array, self.slots, self.slot) = (next, array.slots, 0);
        }
        Ok(true)
    }
}
