use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use landfall_diagnose::present::{self, Line, Role, Span};
use landfall_diagnose::{Engine, RuleSet};
use landfall_evidence::read::{self, Input, ReadError, Reading};
use landfall_model::Confidence;
use landfall_model::report::{PhaseOutcome, Report, State};

use crate::exit::{Exit, Failure};
use crate::output::{self, Progress};

/// Size limit of a rule file; the built-in ones together have a tenth of it.
const MAX_RULES_BYTES: u64 = 4 << 20;

const RULES_HINT: &str =
    "give a TOML file as `rules/README.md` describes it, or a log monitor of node-problem-detector";

/// Name the root cause found in logs, with evidence
#[derive(Args)]
#[command(after_help = "\
Examples:
  landfall diagnose /var/log/cloud-init-output.log
  journalctl -b | landfall diagnose -
  landfall diagnose --output json logs/ | jq .verdict
  landfall diagnose                        (this machine, as root)
  landfall diagnose --root /mnt/dead-disk
  landfall diagnose --explain kubelet.log  (why this verdict and no other)
  landfall diagnose --rules kernel-monitor.json dmesg.txt

`landfall explain CAUSE` prints what is known about a cause.

Exit codes: 0 nothing wrong found · 1 a PATH could not be read · 2 something is wrong, named or not")]
pub(crate) struct Diagnose {
    /// Logs, journals, bundles, archives or folders of them; `-` is standard input; none: this machine
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,

    /// With no PATH: the machine's root folder: `/`, a mounted disk, a container's `/host`
    #[arg(long, value_name = "DIR", default_value = "/", conflicts_with = "paths")]
    root: PathBuf,

    /// Show the whole reasoning: every rule, what explains what, what was ruled out, how sure and why
    #[arg(long)]
    explain: bool,

    /// Further rules: a TOML file as in `rules/`, or node-problem-detector's log monitor JSON; may be repeated
    #[arg(long, value_name = "FILE")]
    rules: Vec<PathBuf>,

    /// How to print the report
    #[arg(long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

#[derive(Clone, Copy, ValueEnum)]
pub(super) enum Format {
    /// For people
    Text,
    /// For programs: docs/reference/report.schema.json
    Json,
    /// To paste into an issue
    Markdown,
    /// One page that needs nothing else
    Html,
}

/// Minimum confidence of a lead that counts as a failure. Weaker ones also occur on healthy machines.
const LEAD: f64 = 0.4;

// === impl Diagnose ===

impl Diagnose {
    /// Diagnoses files that another command fetched.
    pub(super) fn of(paths: Vec<PathBuf>, output: Format) -> Self {
        Self { paths, root: "/".into(), explain: false, rules: Vec::new(), output }
    }

    pub(crate) fn run(self) -> Result<Exit, Failure> {
        let engine = Engine::new(rules(&self.rules)?).context("prepare the rules")?;
        let inputs = if self.paths.is_empty() {
            vec![machine(&self.root)?]
        } else {
            self.paths.into_iter().map(input).collect()
        };
        let progress = Progress::start("Reading", total_bytes(&inputs));
        let reading = read::read(&engine, inputs, &|bytes| progress.add(bytes)).map_err(explain);
        progress.finish();
        let Reading { mut report, unread } = reading?;
        if !self.explain {
            report.reasoning = None;
        }
        output::print(&self.output.show(&report)?)?;
        let unread_any = !unread.is_empty();
        // An unreadable input may contain the failure, so `nothing wrong` would be unproven.
        for error in unread {
            explain(error).report();
        }
        Ok(if is_wrong(&report) {
            Exit::Findings
        } else if unread_any {
            Exit::Failed
        } else {
            Exit::Done
        })
    }
}

/// Returns whether the report contains a failure. A finding that a later success has cleared is reported, but does
/// not count.
fn is_wrong(report: &Report) -> bool {
    let lead = report.findings.iter().any(|finding| finding.confidence >= Confidence::new(LEAD));
    let failed = report.timeline.iter().any(|entry| entry.outcome == PhaseOutcome::Failed);
    match report.verdict.state {
        State::Failed | State::Hung | State::Degraded => true,
        State::Unknown => lead || failed,
        State::Running | State::Succeeded => false,
    }
}

/// Returns the built-in rules and those of further files.
fn rules(files: &[PathBuf]) -> Result<RuleSet, Failure> {
    if files.is_empty() {
        return Ok(RuleSet::embedded().context("read the built-in rules")?);
    }
    let mut texts = Vec::new();
    for path in files {
        let name = path.display().to_string();
        let text = read_rules(path).with_context(|| format!("read the rules in `{name}`"));
        texts.push((name, text.map_err(|error| Failure::new(error, RULES_HINT))?));
    }
    let files = texts.iter().map(|(name, text)| (name.as_str(), text.as_str()));
    RuleSet::embedded_with(files).map_err(|error| Failure::new(error, RULES_HINT))
}

fn read_rules(path: &Path) -> anyhow::Result<String> {
    let mut text = String::new();
    let file = std::fs::File::open(path)?;
    file.take(MAX_RULES_BYTES + 1).read_to_string(&mut text)?;
    anyhow::ensure!(text.len() as u64 <= MAX_RULES_BYTES, "more than {MAX_RULES_BYTES} bytes");
    Ok(text)
}

// === impl Format ===

impl Format {
    fn show(self, report: &Report) -> anyhow::Result<String> {
        match self {
            Self::Text => {
                let size = output::size();
                let mut lines = present::screen(report, size);
                lines.extend(present::reasoning(report, size.width));
                Ok(if output::colour_on_stdout() { coloured(lines) } else { present::plain(&lines) })
            }
            Self::Markdown => Ok(present::markdown(report)),
            Self::Html => Ok(present::html(report)),
            Self::Json => Ok(serde_json::to_string_pretty(report).context("write the report")? + "\n"),
        }
    }
}

/// Adds color, which only repeats the text; no information depends on it.
fn coloured(lines: Vec<Line>) -> String {
    let mut text = String::new();
    for line in lines {
        for Span { role, text: part } in line {
            let colour = match role {
                Role::Bad => "1;31",
                Role::Good => "1;32",
                Role::Open => "1;33",
                Role::Heading => "1",
                Role::Place => "2",
                Role::Focus => "1;36",
                Role::Plain | Role::Quote => "0",
            };
            text += &format!("\x1b[{colour}m{part}\x1b[0m");
        }
        text.push('\n');
    }
    text
}

fn input(path: PathBuf) -> Input {
    if path.as_os_str() == "-" { Input::stdin() } else { Input::Path(path) }
}

fn machine(root: &Path) -> Result<Input, Failure> {
    let (host, plan) = super::host_and_plan(root)?;
    Ok(Input::Machine { host, plan })
}

/// Returns the size of the inputs, where it is known in advance.
fn total_bytes(inputs: &[Input]) -> Option<u64> {
    let sizes = inputs.iter().map(|input| match input {
        Input::Path(path) => {
            std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file).map(|file| file.len())
        }
        Input::Stream { .. } | Input::Machine { .. } => None,
    });
    sizes.sum()
}

fn explain(error: ReadError) -> Failure {
    let hint = match &error {
        ReadError::Open { .. } => {
            "check the path, your right to read it, and that it is or holds whole log files"
        }
        ReadError::Special { .. } => "name a log file, a folder of them, or `-` for standard input",
        ReadError::Redact(_) => "this is a defect of the program: please report it",
        ReadError::Stream { .. } => "pipe a log into `landfall diagnose -`",
    };
    Failure::new(error, hint)
}
