//! The boots of each machine: a log may cover several, and a failure of one boot may be over in the next.

use std::collections::BTreeMap;

use crate::case::SourceEntry;
use crate::moment::Moment;

/// Closer marks belong to the same boot: the journal's own mark is just above the kernel's first line.
const SAME_BOOT_LINES: u64 = 20;

/// Start of each boot of each machine.
#[derive(Debug, Default)]
pub(crate) struct Boots<'c> {
    starts: BTreeMap<&'c str, Vec<Start>>,
}

#[derive(Clone, Copy, Debug)]
enum Start {
    /// The log starts inside a boot.
    BeforeTheLog,
    At(Moment),
}

// === impl Boots ===

impl<'c> Boots<'c> {
    /// `marks` are the lines that start a boot, in the order of each source's lines.
    pub(crate) fn new(sources: &'c [SourceEntry], marks: impl Iterator<Item = Moment>) -> Self {
        let mut by_source: BTreeMap<usize, Vec<Moment>> = BTreeMap::new();
        for mark in marks {
            let known = by_source.entry(mark.source).or_default();
            if known.last().is_none_or(|last| mark.line > last.line + SAME_BOOT_LINES) {
                known.push(mark);
            }
        }
        let mut starts: BTreeMap<&'c str, Vec<Start>> = BTreeMap::new();
        for (source, marks) in by_source {
            let Some(entry) = sources.get(source) else { continue };
            let first_mark = marks.first().map_or(0, |mark| mark.line);
            let hits = entry.hits.values().filter_map(|hits| hits.first.first());
            let before =
                hits.map(|hit| hit.line).min().is_some_and(|line| line + SAME_BOOT_LINES < first_mark);
            let told: Vec<Start> = before
                .then_some(Start::BeforeTheLog)
                .into_iter()
                .chain(marks.into_iter().map(Start::At))
                .collect();
            // Several logs of a machine show the same boots: the one that shows the most is used.
            let known = starts.entry(entry.node.as_str()).or_default();
            if told.len() > known.len() {
                *known = told;
            }
        }
        starts.retain(|_, starts| starts.len() > 1);
        Self { starts }
    }

    /// Returns the boot of a line, counted from 1; `None` if there is only one or it is unknown.
    pub(crate) fn of(&self, node: &str, line: Moment) -> Option<u32> {
        let starts = self.starts.get(node)?;
        let begun = starts.iter().filter_map(|start| match start {
            Start::BeforeTheLog => Some(true),
            Start::At(mark) if mark.source == line.source => Some(mark.line <= line.line),
            Start::At(mark) => line.is_after(*mark),
        });
        let begun = begun.filter(|begun| *begun).count();
        u32::try_from(begun).ok().filter(|boot| *boot > 0)
    }

    /// Returns the number of boots of the machine; 0 if there is only one.
    pub(crate) fn count(&self, node: &str) -> u32 {
        self.starts.get(node).map_or(0, |starts| u32::try_from(starts.len()).unwrap_or(u32::MAX))
    }
}
