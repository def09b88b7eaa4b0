use std::io::{self, IsTerminal as _};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use landfall_cluster::Cluster;
use landfall_controller::capi::board::{Query, board};
use landfall_controller::capi::observe::LookError;
use landfall_hub::{Client, ClientError};
use landfall_model::report::State;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

use super::ask_hub::{AskHub, explain};
use super::explain::unknown_cause;
use crate::exit::{Exit, Failure};
use crate::{output, runtime};

/// Width limit for names and titles, so that each row stays on one line.
const NAME_WIDTH: usize = 40;
const MIN_TITLE: usize = 24;
/// Bytes that are escaped in a query string.
const QUERY: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_');

/// Show the fleet in the terminal, from a hub or from Cluster API
#[derive(Args)]
#[command(after_help = "\
Examples:
  landfall status
  landfall status --state failed --watch
  landfall status --hub https://hub.corp:8700 --ca hub-ca.crt --token-file ~/.landfall-token
  landfall status --hub https://hub.corp:8700 --ca hub-ca.crt --client-certificate ann.crt --client-key ann.key
  landfall status --cluster --kubeconfig management.kubeconfig --watch
  landfall status --output json | jq '.groups[].title'

Exit codes: 0 no node is in trouble, of those that `--state` and `--cause` ask for · 1 failed · 2 some are · 69 the hub or cluster \
cannot be reached · 77 it refused")]
pub(crate) struct Status {
    #[command(flatten)]
    hub: AskHub,

    /// Ask a management cluster of Cluster API instead: the conditions of its Machines, and BootstrapReports
    #[arg(long)]
    cluster: bool,

    /// Access to the management cluster [default: `KUBECONFIG`]
    #[arg(long, value_name = "FILE", requires = "cluster")]
    kubeconfig: Option<PathBuf>,

    /// Only nodes in this state
    #[arg(long, value_name = "STATE", value_parser = State::ALL.map(State::name))]
    state: Option<String>,

    /// Only nodes with this cause
    #[arg(long)]
    cause: Option<String>,

    /// Nodes to show
    #[arg(long, default_value_t = 50)]
    limit: u32,

    /// Show it again every few seconds, until interrupted
    #[arg(long)]
    watch: bool,

    /// Seconds between two updates
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=3600))]
    every: u64,

    /// How to print
    #[arg(long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For people
    Text,
    /// For programs: `Fleet` in docs/reference/hub.openapi.json; with `--watch` one object per line
    Json,
}

enum Source {
    Hub { client: Client, path: String },
    Cluster(Box<Cluster>),
}

// === impl Status ===

impl Status {
    pub(crate) fn run(self) -> Result<Exit, Failure> {
        runtime::single_threaded()?.block_on(async {
            let source = self.source().await?;
            let mut unknown = self.cause.as_deref().map(unknown_cause).transpose()?.flatten();
            loop {
                let fleet = match source.ask(&self).await {
                    // In watch mode an unreachable source is retried, because it may restart.
                    Err(AskError::Away(failure)) if self.watch => {
                        failure.report();
                        tokio::time::sleep(Duration::from_secs(self.every)).await;
                        continue;
                    }
                    Err(AskError::Away(failure) | AskError::Refused(failure)) => return Err(failure),
                    Ok(fleet) => fleet,
                };
                self.show(&fleet)?;
                let mistaken = unknown.take().filter(|_| fleet["found"] == 0);
                if let Some(words) = &mistaken {
                    output::say(&format!("hint: {words}"));
                }
                if !self.watch {
                    if mistaken.is_some() {
                        // A script would mistake it for a fleet without failures.
                        return Ok(Exit::Usage);
                    }
                    let trouble = is_trouble(&fleet, self.is_filtered());
                    return Ok(if trouble { Exit::Findings } else { Exit::Done });
                }
                tokio::time::sleep(Duration::from_secs(self.every)).await;
            }
        })
    }

    async fn source(&self) -> Result<Source, Failure> {
        if self.cluster {
            // No request was sent yet, so the error is about a file.
            let cluster = Cluster::connect(self.kubeconfig.as_deref())
                .await
                .map_err(|error| Failure::new(error, "name the management cluster with `--kubeconfig`"))?;
            return Ok(Source::Cluster(Box::new(cluster)));
        }
        let client = self.hub.client()?;
        let mut path = format!("/api/v1/fleet?limit={}", self.limit);
        for (name, value) in [("state", &self.state), ("cause", &self.cause)] {
            if let Some(value) = value {
                path += &format!("&{name}={}", escaped(value));
            }
        }
        Ok(Source::Hub { client, path })
    }

    fn is_filtered(&self) -> bool {
        self.state.is_some() || self.cause.is_some()
    }

    fn show(&self, fleet: &Value) -> anyhow::Result<()> {
        if self.output == Format::Json {
            let text = if self.watch { fleet.to_string() } else { format!("{fleet:#}") };
            return output::print(&(text + "\n"));
        }
        let (width, colour) = (output::size().width, output::colour_on_stdout());
        let text = table(fleet, self.is_filtered(), width, colour, jiff::Timestamp::now());
        output::print(&if self.watch { framed(&text, io::stdout().is_terminal()) } else { text })
    }
}

/// Formats one refresh: over the previous one on a terminal, otherwise below it, with a line between.
fn framed(text: &str, terminal: bool) -> String {
    if !terminal {
        return format!("{text}\n");
    }
    // Moves the cursor home, and clears each line to its end and everything below. So nothing of a longer output
    // remains, and nothing flickers.
    let lines: String = text.lines().map(|line| format!("{line}\x1b[K\n")).collect();
    format!("\x1b[H{lines}\x1b[J")
}

/// The reason why there is nothing to show.
enum AskError {
    /// The source may be available again soon.
    Away(Failure),
    Refused(Failure),
}

// === impl Source ===

impl Source {
    async fn ask(&self, status: &Status) -> Result<Value, AskError> {
        match self {
            Self::Hub { client, path } => {
                let answer = client.get(path).await.map_err(|error| match error {
                    ClientError::Refused { .. } => AskError::Refused(explain(error)),
                    error => AskError::Away(explain(error)),
                })?;
                serde_json::from_slice(&answer)
                    .context("read the hub's answer")
                    .map_err(|error| AskError::Refused(error.into()))
            }
            Self::Cluster(cluster) => {
                let query = Query {
                    state: status.state.clone(),
                    cause: status.cause.clone(),
                    limit: usize::try_from(status.limit).unwrap_or(usize::MAX),
                };
                board(cluster, &query).await.map_err(explain_cluster)
            }
        }
    }
}

fn explain_cluster(error: LookError) -> AskError {
    match &error {
        LookError::Cluster(cause) if cause.is_denied() => {
            let hint = "use an account that may list Machines and BootstrapReports";
            AskError::Refused(Failure::new(error, hint).exit(Exit::NotPermitted))
        }
        LookError::Cluster(_) => {
            let hint = "is this the management cluster? name it with `--kubeconfig`";
            AskError::Away(Failure::new(error, hint).exit(Exit::Unavailable))
        }
        _ => AskError::Refused(Failure::new(error, "name the management cluster with `--kubeconfig`")),
    }
}

/// Returns whether a selected node has a problem; without a filter the groups contain this for the complete fleet.
fn is_trouble(fleet: &Value, filtered: bool) -> bool {
    let list = |name: &str| fleet[name].as_array().map(Vec::as_slice).unwrap_or_default();
    let failed = |node: &Value| matches!(node["state"].as_str(), Some("failed" | "hung" | "degraded"));
    if filtered { list("nodes").iter().any(failed) } else { !list("groups").is_empty() }
}

/// Formats the fleet view: a summary line, the groups, the nodes. A filtered view has no groups, because a hub counts
/// the complete fleet.
fn table(fleet: &Value, filtered: bool, width: usize, colour: bool, now: jiff::Timestamp) -> String {
    let list = |name: &str| fleet[name].as_array().cloned().unwrap_or_default();
    let states: Vec<String> =
        list("states").iter().map(|state| format!("{} {}", state["nodes"], text(&state["state"]))).collect();
    let total = fleet["total"].as_u64().unwrap_or(0);
    let found = fleet["found"].as_u64().unwrap_or(0);
    let mut out = match total {
        _ if filtered && total > 0 => {
            let (of, end) = (if found == 1 { "matches" } else { "match" }, if total == 1 { "" } else { "s" });
            format!("{found} of {total} node{end} {of}\n")
        }
        0 => "No node has reported yet\n".to_owned(),
        1 => format!("1 node: {}\n", states.join(", ")),
        _ => format!("{total} nodes: {}\n", states.join(", ")),
    };
    let groups = if filtered { Vec::new() } else { list("groups") };
    if !groups.is_empty() {
        out.push('\n');
    }
    for group in groups {
        let cause = group["cause"]
            .as_str()
            .map(|cause| format!(" ({})", output::harmless(cause)))
            .unwrap_or_default();
        out += &format!(
            "{:>6}  {}  {}{cause}\n",
            group["nodes"].as_u64().unwrap_or(0),
            painted(&text(&group["state"]), colour, 9),
            text(&group["title"])
        );
    }
    let nodes = list("nodes");
    if nodes.is_empty() {
        return out;
    }
    // Machines of a management cluster have a namespace.
    let named = |node: &Value| match node["namespace"].as_str() {
        Some(namespace) => format!("{}/{}", output::harmless(namespace), text(&node["name"])),
        None => text(&node["name"]),
    };
    let name_width =
        nodes.iter().map(|node| named(node).chars().count()).max().unwrap_or(4).clamp(4, NAME_WIDTH);
    let title_width = width.saturating_sub(name_width + 36).max(MIN_TITLE);
    out += &format!("\n{:<9}  {:<name_width$}  {:<13}  {:>6}  {}\n", "STATE", "NODE", "PHASE", "FOR", "WHAT");
    for node in &nodes {
        let since = node["since"].as_str().and_then(|since| since.parse::<jiff::Timestamp>().ok());
        let age = since.map(|since| age(now.duration_since(since).as_secs())).unwrap_or_default();
        let name = cut(&named(node), name_width);
        out += &format!(
            "{}  {name:<name_width$}  {:<13}  {age:>6}  {}\n",
            painted(&text(&node["state"]), colour, 9),
            text(&node["phase"]),
            cut(&text(&node["title"]), title_width),
        );
    }
    let more = found.saturating_sub(nodes.len() as u64);
    if more > 0 {
        out += &format!("and {more} more\n");
    }
    out
}

fn text(value: &Value) -> String {
    output::harmless(value.as_str().unwrap_or_default())
}

fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

fn painted(state: &str, colour: bool, width: usize) -> String {
    let code = match state {
        "failed" | "hung" => "1;31",
        "degraded" => "1;33",
        "succeeded" => "32",
        _ => "0",
    };
    if colour { format!("\x1b[{code}m{state:<width$}\x1b[0m") } else { format!("{state:<width$}") }
}

fn age(seconds: i64) -> String {
    match seconds {
        ..=59 => format!("{}s", seconds.max(0)),
        60..=3599 => format!("{}m", seconds / 60),
        3600..=172_799 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

fn escaped(text: &str) -> String {
    utf8_percent_encode(text, QUERY).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_board_says_what_is_wrong_first() {
        let fleet = serde_json::json!({
            "total": 41,
            "found": 41,
            "states": [{"state": "failed", "nodes": 40}, {"state": "succeeded", "nodes": 1}],
            "groups": [{"cause": "disk-full", "title": "The disk is full", "state": "failed", "nodes": 40}],
            "nodes": [{
                "name": "n1", "state": "failed", "phase": "runtime", "title": "The disk \u{1b}[2Jis full",
                "since": "2026-01-02T03:04:05Z"
            }],
        });
        let now = "2026-01-02T03:09:05Z".parse().unwrap();
        insta::assert_snapshot!(table(&fleet, false, 80, false, now), @r"
        41 nodes: 40 failed, 1 succeeded

            40  failed     The disk is full (disk-full)

        STATE      NODE  PHASE             FOR  WHAT
        failed     n1    runtime            5m  The disk �[2Jis full
        and 40 more
        ");
    }

    #[test]
    fn the_summary_is_of_what_was_asked_for() {
        let group =
            serde_json::json!({"cause": "disk-full", "title": "Full", "state": "failed", "nodes": 40});
        let nodes = serde_json::json!([{"name": "n1", "state": "succeeded"}]);
        let fleet =
            serde_json::json!({"total": 41, "found": 1, "states": [], "groups": [group], "nodes": nodes});
        let now = "2026-01-02T03:09:05Z".parse().unwrap();
        let text = table(&fleet, true, 80, false, now);
        assert!(text.starts_with("1 of 41 nodes matches\n\nSTATE") && !text.contains("disk-full"), "{text}");
        assert!(is_trouble(&fleet, false) && !is_trouble(&fleet, true));
        let none = serde_json::json!({"total": 41, "found": 0, "groups": [group], "nodes": []});
        assert_eq!(table(&none, true, 80, false, now), "0 of 41 nodes match\n");
        assert!(!is_trouble(&none, true));
    }

    #[test]
    fn a_look_on_a_terminal_takes_the_place_of_the_last() {
        assert_eq!(framed("a\nb\n", true), "\x1b[Ha\x1b[K\nb\x1b[K\n\x1b[J");
        assert_eq!(framed("a\nb\n", false), "a\nb\n\n");
    }

    #[test]
    fn long_names_are_cut() {
        assert_eq!(cut("abcdef", 4), "abc…");
        assert_eq!(cut("abcd", 4), "abcd");
        assert_eq!(escaped("a b&c"), "a%20b%26c");
    }
}
