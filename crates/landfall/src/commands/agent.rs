use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{self, IsTerminal as _, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use landfall_evidence::bundle::{BundleWriter, Finished, Packing, Recipient, Sealed, bundle_id};
use landfall_evidence::collect::{self, DROP_INS, Event, Plan, parse_since};
use landfall_model::bundle::{BundleItem, BundleManifest, ItemOutcome};

use super::agent_daemon::Daemon;
use crate::exit::{Exit, Failure};
use crate::output::{self, Progress};

/// Number of unreadable items that are listed by name; further ones are only counted.
const NAMED: usize = 20;

/// Follow this machine's bootstrap and report on it, or collect a bundle with `--once`
///
/// Without `--once` it follows the journal and cloud-init's logs of this boot until it is stopped, keeps the last report in
/// `--state`, and delivers reports by the configured carriers. With `--once` it collects the machine's evidence into a bundle, written
/// while it is collected, with all secrets replaced. `landfall diagnose` reads it, and so does everything that reads an
/// OpenShift log bundle.
#[derive(Args)]
#[command(after_help = "\
Examples:
  landfall agent --hub https://hub.corp:8700 --hub-ca ca.crt --hub-token /etc/landfall/hub.token
  landfall agent --once
  landfall agent --once -o - | ssh me@elsewhere 'cat > bundle.tar.gz'
  landfall agent --once --since 2h
  landfall agent --once --root /mnt/dead-disk -o dead.tar.gz
  landfall agent --once --age-recipient age1… -o bundle.tar.gz.age

Exit codes: 0 a bundle was made, whatever could not be read · 1 no bundle was made, or the agent cannot start · 75 another agent \
works with the state folder")]
pub(crate) struct Agent {
    /// Make one bundle and end
    #[arg(long)]
    once: bool,

    /// Where the bundle goes; `-` is standard output [default: log-bundle-TIME.tar.gz here]
    #[arg(short, long, value_name = "FILE", requires = "once")]
    output: Option<PathBuf>,

    /// The machine's root folder: `/`, a mounted disk, a container's `/host`
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,

    /// Omit journal entries before this time, and log files not written since: `2h`, `30m`, or a time like `2026-01-02T03:04:05Z`
    #[arg(long, value_name = "TIME", value_parser = since, requires = "once")]
    since: Option<jiff::Timestamp>,

    /// How the bundle is packed [default: as the name of the file says, else gzip]
    #[arg(long, value_enum, requires = "once")]
    format: Option<Format>,

    /// Encrypt the bundle to this recipient of `age`: only the holder of the identity can read it
    #[arg(long, value_name = "age1…", requires = "once")]
    age_recipient: Option<Recipient>,

    #[command(flatten)]
    daemon: Daemon,
}

/// Destination of the bundle.
enum Output {
    Plain(Box<dyn Write>),
    Sealed(Box<Sealed<Box<dyn Write>>>),
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    /// What every reader of log bundles opens
    Gzip,
    /// Smaller and faster
    Zstd,
}

// === impl Agent ===

impl Agent {
    pub(crate) fn run(self) -> Result<Exit, Failure> {
        if !self.once {
            return self.daemon.run(&self.root);
        }
        let (host, plan) = super::host_and_plan(&self.root)?;
        let plan = self.since.into_iter().fold(plan, Plan::since);
        let packing = self.format.unwrap_or_else(|| Format::of_name(self.output.as_deref())).packing();
        let started = jiff::Timestamp::now();
        let id = bundle_id(started);
        let named = self.output.is_some();
        let sealed = self.age_recipient.is_some();
        let to = self.output.unwrap_or_else(|| {
            let end = if sealed { ".age" } else { "" };
            format!("log-bundle-{id}.{}{end}", packing.extension()).into()
        });
        let out: Box<dyn Write> =
            if to.as_os_str() == "-" {
                if io::stdout().is_terminal() {
                    let error = anyhow::anyhow!("a bundle is not for a terminal");
                    return Err(Failure::new(error, "redirect standard output, or name a file with `-o`"));
                }
                Box::new(io::stdout().lock())
            } else {
                let mut options = OpenOptions::new();
                // Readable by the owner only: redaction may have missed confidential data. A generated name must not
                // exist, because another user could have created it before.
                options.write(true).mode(0o600).create(named).truncate(named).create_new(!named);
                let file = options.open(&to);
                let file = file.with_context(|| format!("create `{}`", to.display()));
                Box::new(file.map_err(|error| {
                    Failure::new(error, "name a file in a folder you may write to with `-o`")
                })?)
            };
        let writing = || format!("write `{}`", to.display());
        let out = Output::new(out, self.age_recipient.as_ref()).with_context(writing)?;
        let mut bundle = BundleWriter::new(out, packing, &id, host.identity(), started);
        let progress = Progress::items("Collecting");
        let result = collect::collect(host, &plan, &mut bundle, &|event| match event {
            Event::Item { id, number, of } => {
                tracing::debug!(item = id, number, of, "Collecting.");
                progress.item(id, number, of);
            }
            Event::Recorded(item) => progress.add(item.bytes),
        });
        let collecting = || format!("collect into `{}`", to.display());
        let finished = result.with_context(collecting).and_then(|()| {
            let Finished { out, manifest, packed } =
                bundle.finish(jiff::Timestamp::now()).with_context(writing)?;
            out.finish().with_context(writing)?;
            Ok((manifest, packed))
        });
        progress.finish();
        let (manifest, packed) = finished.map_err(cut_short)?;
        let told = summary(&manifest, packed, &to.display().to_string(), sealed);
        // Errors are ignored: standard error may be closed.
        let _ = io::stderr().write_all(told.as_bytes());
        Ok(Exit::Done)
    }
}

// === impl Output ===

impl Output {
    fn new(out: Box<dyn Write>, recipient: Option<&Recipient>) -> io::Result<Self> {
        Ok(match recipient {
            Some(recipient) => Self::Sealed(Box::new(Sealed::new(out, recipient)?)),
            None => Self::Plain(out),
        })
    }

    fn finish(self) -> io::Result<()> {
        match self {
            Self::Plain(mut out) => out.flush(),
            Self::Sealed(sealed) => sealed.finish().map(drop),
        }
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(out) => out.write(bytes),
            Self::Sealed(sealed) => sealed.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(out) => out.flush(),
            Self::Sealed(sealed) => sealed.flush(),
        }
    }
}

// === impl Format ===

impl Format {
    /// Returns the format that the name of a file implies.
    fn of_name(name: Option<&Path>) -> Self {
        let Some(name) = name else { return Self::Gzip };
        let ends = |name: &Path, end: &str| name.extension().is_some_and(|extension| extension == end);
        // The name of an encrypted file also contains the extension of its content.
        let inside = name.file_stem().filter(|_| ends(name, "age")).map_or(name, Path::new);
        if ends(inside, "zst") || ends(inside, "tzst") { Self::Zstd } else { Self::Gzip }
    }

    fn packing(self) -> Packing {
        match self {
            Self::Gzip => Packing::Gzip,
            Self::Zstd => Packing::Zstd,
        }
    }
}

/// Returns the failure for an incomplete bundle, with a hint.
fn cut_short(error: anyhow::Error) -> Failure {
    let cause = error.chain().find_map(|cause| cause.downcast_ref::<io::Error>()).map(io::Error::kind);
    match cause {
        Some(io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge) => {
            Failure::new(
                error,
                "what was written so far can be diagnosed; free some space, or send the bundle elsewhere with `-o -`",
            )
        }
        Some(io::ErrorKind::BrokenPipe) => {
            Failure::new(error, "the reader of standard output ended before the bundle was complete")
        }
        _ => error.into(),
    }
}

fn since(text: &str) -> Result<jiff::Timestamp, String> {
    parse_since(text, jiff::Timestamp::now()).map_err(|error| error.to_string())
}

/// Formats a summary: collected items, unreadable ones with the reason, and the next step.
fn summary(manifest: &BundleManifest, packed: u64, to: &str, sealed: bool) -> String {
    let files = manifest.items.iter().filter(|item| item.sha256.is_some()).count();
    let bytes: u64 = manifest.items.iter().map(|item| item.bytes).sum();
    let replaced: u64 = manifest.items.iter().flat_map(|item| item.redactions.values()).sum();
    let place = if to == "-" { "standard output".to_owned() } else { format!("`{to}`") };
    let mut text = format!(
        "{}, {} ({} packed) to {place}; {} replaced\n",
        count(files as u64, "file"),
        size(bytes),
        size(packed),
        count(replaced, "secret")
    );
    let mut by_reason: BTreeMap<String, Vec<&BundleItem>> = BTreeMap::new();
    for item in &manifest.items {
        let reason = match &item.outcome {
            // A missing item is not a failure.
            ItemOutcome::Collected | ItemOutcome::Absent | ItemOutcome::Skipped { .. } => continue,
            ItemOutcome::Failed { error } => error.clone(),
            ItemOutcome::TimedOut => "it took too long".to_owned(),
            ItemOutcome::Withheld { reason } => format!("withheld: {reason}"),
        };
        by_reason.entry(reason).or_default().push(item);
    }
    let mut named = 0;
    for (reason, items) in &by_reason {
        for item in items.iter().take(NAMED.saturating_sub(named)) {
            named += 1;
            let line = format!("{}: {reason}", item.source);
            text += &format!("not collected: {}\n", output::harmless(&line));
        }
    }
    let all: usize = by_reason.values().map(Vec::len).sum();
    if all > named {
        text += &format!("not collected: {} more, see `manifest.json` in the bundle\n", all - named);
    }
    if by_reason.keys().any(|reason| reason.contains("ermission denied")) {
        text += "hint: run as root to collect what may not be read\n";
    }
    if by_reason.values().flatten().any(|item| item.source.starts_with(DROP_INS)) {
        text += &format!("hint: fix or remove the file in `{DROP_INS}`; everything else was collected\n");
    }
    text + &next_step(to, sealed)
}

fn next_step(to: &str, sealed: bool) -> String {
    match (to, sealed) {
        ("-", _) => String::new(),
        (_, true) => format!("next: age --decrypt -i IDENTITY {to} | landfall diagnose -\n"),
        (_, false) => format!("next: landfall diagnose {to}\n"),
    }
}

fn count(number: u64, thing: &str) -> String {
    let end = if number == 1 { "" } else { "s" };
    format!("{number} {thing}{end}")
}

/// Formats a size with a unit.
fn size(bytes: u64) -> String {
    let units = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
    match units.into_iter().find(|(_, shift)| bytes >> shift > 0) {
        Some((unit, shift)) => {
            let tenths = (u128::from(bytes) * 10) >> shift;
            format!("{}.{} {unit}", tenths / 10, tenths % 10)
        }
        None => count(bytes, "byte"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_said_as_people_say_them() {
        assert_eq!(
            (count(0, "file"), count(1, "file"), count(2, "file")),
            ("0 files".into(), "1 file".into(), "2 files".into())
        );
        assert_eq!(size(1), "1 byte");
        assert_eq!(size(1023), "1023 bytes");
        assert_eq!(size(1536), "1.5 KiB");
        assert_eq!(size(5 << 30), "5.0 GiB");
    }

    #[test]
    fn the_next_step_fits_the_bundle() {
        assert_eq!(next_step("b.tar.gz", false), "next: landfall diagnose b.tar.gz\n");
        assert!(next_step("b.age", true).starts_with("next: age --decrypt"));
        assert_eq!(next_step("-", false), "");
    }
}
