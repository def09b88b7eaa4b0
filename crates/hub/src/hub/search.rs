//! Search: reports whose evidence holds all the words, and the lines that do.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use landfall_model::Cause;
use landfall_model::report::Evidence;
use serde::{Deserialize, Serialize};
use tokio::sync::OwnedSemaphorePermit;

use super::{Hub, unreadable};
use crate::access::{Caller, Wish};
use crate::name::NodeName;
use crate::problem::Problem;

/// Words of one search, and their length.
const MAX_WORDS: usize = 16;
const MAX_WORD: usize = 100;
/// Reports one search gives, and lines of each.
const MAX_HITS: u32 = 100;
const MAX_HIT_LINES: usize = 5;
/// What one search reads of reports, newest first. Reports of nodes are far below; what is found beyond comes without lines.
pub(super) const MAX_LOOKED_AT: usize = 16 << 20;
/// Searches at once: each keeps a core busy and a large report in memory.
pub(super) const MAX_SEARCHES: usize = 2;
/// How long a search waits for its turn.
const PATIENCE: Duration = Duration::from_secs(10);

/// A report that search found, with the lines that hold the words.
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

/// The evidence of a report. What else stands in it is passed over and takes no room.
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
        let turn = Arc::new(self.turn_to_search().await?);
        let hits = self.store.search(words.clone(), MAX_HITS).await?;
        let words: Arc<[String]> = words.iter().map(|word| word.to_lowercase()).collect();
        let mut found = Vec::with_capacity(hits.len());
        let mut left = MAX_LOOKED_AT;
        for hit in hits {
            // One after the other: all of them at once are too much to have in memory.
            let report = match NodeName::new(hit.node.as_str()) {
                Ok(name) if left > 0 => self.store.report(name, hit.turn).await?,
                _ => None,
            };
            let mut lines = Vec::new();
            if let Some(report) = report {
                left = left.saturating_sub(report.len());
                let (words, turn) = (Arc::clone(&words), Arc::clone(&turn));
                // A large report keeps a core busy for a while; others are served meanwhile.
                let looked = tokio::task::spawn_blocking(move || {
                    let _turn = turn;
                    lines_with(&words, &report)
                });
                let looked = looked.await;
                let looked = looked.map_err(|_| Problem::new(500, "Defect", "a report was not looked at"))?;
                lines = looked.map_err(|error| unreadable(&error))?;
            }
            let (turn, received) = (hit.turn, hit.received);
            found.push(Found { node: hit.node, turn, received, title: hit.title, cause: hit.cause, lines });
        }
        Ok(found)
    }

    async fn turn_to_search(&self) -> Result<OwnedSemaphorePermit, Problem> {
        let turn = tokio::time::timeout(PATIENCE, Arc::clone(&self.searching).acquire_owned()).await;
        let busy = || {
            let detail = "others are searching too, and it takes long; search again in a few seconds";
            Problem::new(503, "Try again later", detail)
        };
        turn.ok().and_then(Result::ok).ok_or_else(busy)
    }
}

/// The first lines that hold one of the words.
fn lines_with(words: &[String], report: &str) -> serde_json::Result<Vec<Evidence>> {
    let proofs: Proofs = serde_json::from_slice(report.as_bytes())?;
    let mut lines: Vec<Evidence> = Vec::new();
    for line in proofs.findings.into_iter().flat_map(|proof| proof.evidence) {
        if lines.len() == MAX_HIT_LINES {
            break;
        }
        // One line may prove several findings.
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
