//! Where in a bundle a line of evidence stands.
//!
//! A report quotes lines by what they were read from on the machine: the journal, a log, a file of another bundle. A bundle
//! says in its records what each of its files was read from, and there the line is looked for by its words. Its number only
//! helps to choose among equal lines: a bundle is made at another time than the report, and limits may have cut it.

use std::io::Read;
use std::ops::ControlFlow;

use crate::access::Caller;
use crate::bundles::{self, BundleError, Effort};
use crate::hub::Hub;
use crate::problem::Problem;

/// What of a line is looked for; the rest of a long one tells nothing more.
pub(crate) const MAX_WORDS: usize = 240;
/// What the agent was told by the kernel and stands in no log.
const NOT_WRITTEN: &str = "processes";
const JOURNAL: &str = "journal";

/// A line that is looked for.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) source: String,
    pub(crate) line: u64,
    pub(crate) text: String,
}

/// Where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) path: String,
    pub(crate) line: u64,
}

// === impl Hub ===

impl Hub {
    /// Where the line stands in this bundle; nothing when it is not in it.
    pub(crate) async fn place_of(
        &self,
        caller: &Caller,
        digest: &str,
        wanted: Wanted,
    ) -> Result<Option<Place>, Problem> {
        self.read_bundle(caller, digest, move |packed| find(packed, &wanted, &Effort::default())).await
    }
}

/// Whether a bundle can hold lines of this source.
pub(crate) fn is_written(source: &str) -> bool {
    !is_of(source, NOT_WRITTEN)
}

/// The path below `log-bundle-<id>/`, when the source is a file of a bundle.
pub(crate) fn path_in_bundle(source: &str) -> Option<&str> {
    let (_, rest) = source.split_once("log-bundle-")?;
    rest.split_once('/').map(|(_, path)| path)
}

/// Looks for the line. Blocking.
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
        // The same line of the journal stands in the file of its unit and in that of all.
        Ok(if found.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    if found.is_none() && effort.is_spent() { Err(BundleError::Long) } else { Ok(found) }
}

/// Whether a file of a bundle holds what the report calls this.
fn fits(source: &str, path: &str, read_from: &str) -> bool {
    match path_in_bundle(source) {
        Some(own) => is_of(own, path),
        None if is_of(source, JOURNAL) => is_of(read_from, JOURNAL),
        None => is_of(source, read_from),
    }
}

/// Whether this is the name, or the name with a program or unit behind it.
fn is_of(source: &str, name: &str) -> bool {
    source.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
}

/// Reports have a mark in the place of every character that cannot be seen.
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
