//! Location of a line of evidence in a bundle.
//!
//! A report quotes lines with their source on the machine: the journal, a log, a file of another bundle. A bundle
//! records the source of each of its files, and the line is searched there by its text. The line number only selects
//! among equal lines: bundle and report are made at different times, and limits may have truncated the bundle.

use std::io::Read;
use std::ops::ControlFlow;

use crate::access::Caller;
use crate::bundles::{self, BundleError, Effort};
use crate::hub::Hub;
use crate::problem::Problem;

/// Number of compared characters of a line; the rest of a long line adds no information.
pub(crate) const MAX_WORDS: usize = 240;
/// Source whose lines come from the kernel and are not in any log.
const NOT_WRITTEN: &str = "processes";
const JOURNAL: &str = "journal";

/// A line to find.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) source: String,
    pub(crate) line: u64,
    pub(crate) text: String,
}

/// The location of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) path: String,
    pub(crate) line: u64,
}

// === impl Hub ===

impl Hub {
    /// Returns the location of the line in this bundle, or `None`.
    pub(crate) async fn place_of(
        &self,
        caller: &Caller,
        digest: &str,
        wanted: Wanted,
    ) -> Result<Option<Place>, Problem> {
        self.read_bundle(caller, digest, move |packed| find(packed, &wanted, &Effort::default())).await
    }
}

/// Returns whether a bundle can contain lines of this source.
pub(crate) fn is_written(source: &str) -> bool {
    !is_of(source, NOT_WRITTEN)
}

/// Returns the path below `log-bundle-<id>/` if the source is a file of a bundle.
pub(crate) fn path_in_bundle(source: &str) -> Option<&str> {
    let (_, rest) = source.split_once("log-bundle-")?;
    rest.split_once('/').map(|(_, path)| path)
}

/// Searches for the line. Blocking.
fn find(packed: impl Read, wanted: &Wanted, effort: &Effort) -> Result<Option<Place>, BundleError> {
    let text = plain(&wanted.text);
    let text = text.trim_matches('…').trim();
    if text.is_empty() {
        return Ok(None);
    }
    let mut found: Option<Place> = None;
    let far = |line: u64| line.abs_diff(wanted.line);
    bundles::walk(packed, effort, &mut |path, record, content| {
        if !fits(&wanted.source, path, &record.item.source) {
            return Ok(ControlFlow::Continue(()));
        }
        let mut content = bundles::unpacked(content, effort)?;
        let mut number: u64 = 0;
        while let Some(line) = bundles::next_line(&mut content)? {
            number += 1;
            let nearer = found.as_ref().is_none_or(|place| far(number) < far(place.line));
            if nearer && plain(&line).contains(text) {
                found = Some(Place { path: path.to_owned(), line: number });
            }
        }
        // A line of the journal is both in the file of its unit and in the file of all units; the first match
        // suffices.
        Ok(if found.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    if found.is_none() && effort.is_spent() { Err(BundleError::Long) } else { Ok(found) }
}

/// Returns whether a file of a bundle has the source that the report names.
fn fits(source: &str, path: &str, read_from: &str) -> bool {
    match path_in_bundle(source) {
        Some(own) => is_of(own, path),
        None if is_of(source, JOURNAL) => is_of(read_from, JOURNAL),
        None => is_of(source, read_from),
    }
}

/// Returns whether this is the name, optionally followed by a program or unit.
fn is_of(source: &str, name: &str) -> bool {
    source.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
}

/// Normalizes a line: reports contain a marker in place of every invisible character.
fn plain(text: &str) -> String {
    let hidden = |c: char| matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}');
    text.chars().map(|c| if c.is_control() || hidden(c) { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_of_reports_are_found_among_the_files_of_a_bundle() {
        let (log, kept) = ("/var/log/cloud-init-output.log", "bootstrap/cloud-init/cloud-init-output.log");
        for (source, path, read_from, expected) in [
            ("journal", "bootstrap/journals/kubelet.log", "journal:kubelet.service", true),
            ("journal:kubelet", "bootstrap/journals/journal.log.gz", "journal", true),
            ("journal:kubelet", "bootstrap/log/journalist", "/var/log/journalist", false),
            (log, kept, log, true),
            ("/var/log/cloud-init-output.log:kubeadm", kept, log, true),
            ("/var/log/cloud-init-output.log.1", kept, log, false),
            ("machine:log-bundle-1/bootstrap/a.log", "bootstrap/a.log", "x", true),
            ("machine:log-bundle-1/bootstrap/a.log:kubelet", "bootstrap/a.log", "x", true),
            ("machine:log-bundle-1/bootstrap/a.log", "bootstrap/b.log", "bootstrap/a.log", false),
        ] {
            assert_eq!(fits(source, path, read_from), expected, "{source} {path}");
        }
        assert!(!is_written("processes:kubeadm") && is_written("journal") && is_written("processes.log"));
    }
}
