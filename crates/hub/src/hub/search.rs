//! Search for reports whose evidence contains all words, and for the matching lines.

use std::sync::Arc;

use jiff::Timestamp;
use landfall_model::Cause;
use landfall_model::report::Evidence;
use serde::{Deserialize, Serialize};

use super::{Hub, unreadable};
use crate::access::{Caller, Wish};
use crate::limits::permit;
use crate::name::NodeName;
use crate::problem::Problem;

/// Maximum number of words of a search.
const MAX_WORDS: usize = 16;
/// Maximum length of such a word.
const MAX_WORD: usize = 100;
/// Maximum number of reports per search.
const MAX_HITS: u32 = 100;
/// Maximum number of lines per report.
const MAX_HIT_LINES: usize = 5;
/// Maximum total size of the reports read by a search, newest first. Usual reports stay far below; further hits are
/// returned without lines.
pub(super) const MAX_LOOKED_AT: usize = 16 << 20;
/// A report found by a search, with the matching lines.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Found {
    pub node: String,
    pub turn: u64,
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub received: Timestamp,
    pub title: String,
    pub cause: Option<Cause>,
    pub lines: Vec<Evidence>,
}

/// The evidence of a report; other fields are skipped without allocation.
#[derive(Deserialize)]
struct Proofs {
    findings: Vec<Proof>,
}

#[derive(Deserialize)]
struct Proof {
    evidence: Vec<Evidence>,
}

// === impl Hub ===

impl Hub {
    pub(crate) async fn search(&self, caller: &Caller, text: &str) -> Result<Vec<Found>, Problem> {
        caller.may(Wish::See)?;
        let words: Vec<String> = text
            .split_whitespace()
            .map(|word| word.chars().filter(|c| !c.is_control()).collect::<String>())
            .filter(|word| word.chars().any(char::is_alphanumeric))
            .map(|word| word.chars().take(MAX_WORD).collect())
            .take(MAX_WORDS)
            .collect();
        if words.is_empty() {
            return Ok(Vec::new());
        }
        let busy = "others are searching too, and it takes long; search again in a few seconds";
        let mut permit = permit(&self.searches, caller, busy).await?;
        let hits = self.store.search(words.clone(), MAX_HITS).await?;
        let words: Arc<[String]> = words.iter().map(|word| word.to_lowercase()).collect();
        let mut found = Vec::with_capacity(hits.len());
        let mut left = MAX_LOOKED_AT;
        for hit in hits {
            // Sequential, because all reports together need too much memory.
            let report = match NodeName::new(hit.node.as_str()) {
                Ok(name) if left > 0 => self.store.report(name, hit.turn).await?,
                _ => None,
            };
            let mut lines = Vec::new();
            if let Some(report) = report {
                left = left.saturating_sub(report.len());
                let words = Arc::clone(&words);
                // A large report occupies a core for a while, so it is searched on the blocking pool.
                let looked = permit.run_blocking(move || lines_with(&words, &report)).await;
                let looked = looked.map_err(|_| Problem::new(500, "Defect", "a report was not searched"))?;
                permit = looked.1;
                lines = looked.0.map_err(|error| unreadable(&error))?;
            }
            let (turn, received) = (hit.turn, hit.received);
            found.push(Found { node: hit.node, turn, received, title: hit.title, cause: hit.cause, lines });
        }
        Ok(found)
    }
}

/// Returns the first lines that contain one of the words.
fn lines_with(words: &[String], report: &str) -> serde_json::Result<Vec<Evidence>> {
    let proofs: Proofs = serde_json::from_str(report)?;
    let mut lines: Vec<Evidence> = Vec::new();
    for line in proofs.findings.into_iter().flat_map(|proof| proof.evidence) {
        if lines.len() == MAX_HIT_LINES {
            break;
        }
        // One line may be evidence of several findings.
        let is_known = lines
            .iter()
            .any(|known| (&known.source, known.line, &known.text) == (&line.source, line.line, &line.text));
        let text = line.text.to_lowercase();
        if !is_known && words.iter().any(|word| text.contains(word)) {
            lines.push(line);
        }
    }
    Ok(lines)
}
