//! The timeline as bars: one per boot, with lengths by the duration of the phases.

use jiff::Timestamp;
use landfall_model::report::{PhaseOutcome, TimelineEntry};

use crate::findings::duration;

/// Maximum number of boots shown; older ones are irrelevant.
const SHOWN_BOOTS: usize = 3;

/// Maximum number of blocks per phase.
const MAX_BLOCKS: i64 = 12;

/// Returns one line of text per boot, newest last.
pub(super) fn bars(timeline: &[TimelineEntry], width: usize) -> Vec<String> {
    let mut boots: Vec<(Option<u32>, Vec<&TimelineEntry>)> = Vec::new();
    for entry in timeline {
        match boots.last_mut().filter(|(boot, _)| *boot == entry.boot) {
            Some((_, entries)) => entries.push(entry),
            None => boots.push((entry.boot, vec![entry])),
        }
    }
    let hidden = boots.len().saturating_sub(SHOWN_BOOTS);
    let shown = boots[hidden..].iter().map(|(boot, entries)| {
        let name = boot.map(|boot| format!("boot {boot}: ")).unwrap_or_default();
        let with_blocks = bar(entries, true);
        let fits = name.chars().count() + with_blocks.chars().count() <= width;
        format!("{name}{}", if fits { with_blocks } else { bar(entries, false) })
    });
    shown.collect()
}

/// Returns the duration of each phase: until it ended, or until the next one started.
pub(super) fn lengths(entries: &[&TimelineEntry]) -> Vec<Option<i64>> {
    let began = |entry: &&TimelineEntry| entry.started;
    let length = |index: usize| -> Option<i64> {
        let entry = entries.get(index)?;
        let next: Option<Timestamp> = entries.get(index + 1..)?.iter().find_map(began);
        let end = entry.ended.filter(|ended| Some(*ended) > entry.started).or(next)?;
        Some(end.duration_since(entry.started?).as_secs()).filter(|seconds| *seconds >= 0)
    };
    (0..entries.len()).map(length).collect()
}

pub(super) fn outcome_word(outcome: PhaseOutcome) -> &'static str {
    match outcome {
        PhaseOutcome::Ok => "ok",
        PhaseOutcome::Failed => "FAILED",
        PhaseOutcome::Open => "open",
    }
}

fn bar(entries: &[&TimelineEntry], blocks: bool) -> String {
    let lengths = lengths(entries);
    let longest = lengths.iter().flatten().copied().max().unwrap_or(0);
    let part = |(entry, length): (&&TimelineEntry, &Option<i64>)| {
        let block = match entry.outcome {
            PhaseOutcome::Ok => "█",
            PhaseOutcome::Failed => "░",
            PhaseOutcome::Open => "▒",
        };
        let count = length
            .filter(|_| blocks && longest > 0)
            .map_or(0, |seconds| 1 + (MAX_BLOCKS - 1).saturating_mul(seconds) / longest);
        let drawn = format!(" {}", block.repeat(usize::try_from(count).unwrap_or(0)));
        let took = length.filter(|seconds| *seconds > 0).map(|seconds| format!(" {}", duration(seconds)));
        let drawn = if count > 0 { drawn } else { String::new() };
        format!("{}{drawn} {}{}", entry.phase, outcome_word(entry.outcome), took.unwrap_or_default())
    };
    entries.iter().zip(&lengths).map(part).collect::<Vec<_>>().join(" → ")
}

#[cfg(test)]
mod tests {
    use landfall_model::Phase;

    use super::*;

    fn entry(phase: Phase, started: Option<&str>, outcome: PhaseOutcome, boot: Option<u32>) -> TimelineEntry {
        let started = started.map(|time| time.parse().unwrap());
        TimelineEntry { phase, started, ended: None, outcome, boot }
    }

    #[test]
    fn a_phase_is_as_long_as_it_took() {
        let timeline = [
            entry(Phase::Kernel, Some("2026-01-02T03:00:00Z"), PhaseOutcome::Ok, None),
            entry(Phase::CloudInit, Some("2026-01-02T03:00:10Z"), PhaseOutcome::Ok, None),
            entry(Phase::Join, Some("2026-01-02T03:01:50Z"), PhaseOutcome::Failed, None),
        ];
        let bars = bars(&timeline, 100);
        assert_eq!(bars, ["kernel ██ ok 10 s → cloud-init ████████████ ok 100 s → join FAILED"]);
        assert_eq!(super::bars(&timeline, 20), ["kernel ok 10 s → cloud-init ok 100 s → join FAILED"]);
    }

    #[test]
    fn each_boot_has_its_line() {
        let timeline: Vec<_> =
            (1..=5).map(|boot| entry(Phase::Kernel, None, PhaseOutcome::Ok, Some(boot))).collect();
        assert_eq!(bars(&timeline, 80), ["boot 3: kernel ok", "boot 4: kernel ok", "boot 5: kernel ok"]);
        assert!(bars(&[], 80).is_empty());
    }
}
