//! Collects evidence from a machine into a bundle.
//!
//! What to collect is data ([`Plan`]); how is one source per kind, a file each. Each item has its own thread, its
//! own limits and its own outcome: one that fails or hangs leaves a record and nothing else. Files enter the bundle in the
//! order of the plan, whatever finishes first, and everything passes the redactor before it leaves the item's thread.

pub mod dns;
mod forbidden;
mod host;
mod known;
mod plan;
mod provider;
mod since;
mod sink;
mod source;
pub mod systemd;
mod walk;

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use landfall_model::bundle::{BundleItem, ItemOutcome};
use landfall_redact::{BuildError, Redactor};

pub use self::host::Host;
pub use self::known::Secrets;
#[cfg(feature = "schema")]
pub use self::plan::drop_in_schema;
pub use self::plan::{DROP_INS, Plan, PlanError};
use self::plan::{Item, Refused};
pub use self::since::{SinceError, parse_since};
use self::sink::{Limits, Piece, Sink, Trouble, record};
use crate::bundle::BundleWriter;

/// Items collected at the same time. Most wait for a disk or a network, and each holds a few megabytes.
const AT_ONCE: usize = 3;

/// Parts an item may have ready while the ones before it are written.
const READY: usize = 1;

/// How long beyond its own limit an item is waited for: it may be finishing what it has.
const GRACE: Duration = Duration::from_secs(2);

/// The log of the collection; the manifest has everything.
const MAX_LOG: usize = 1 << 20;

/// When nothing comes for so long, what is held back for better packing is sent off.
const SILENCE: Duration = Duration::from_millis(500);

/// Why nothing was collected.
#[derive(Debug, thiserror::Error)]
pub enum CollectError {
    #[error("cannot prepare the removal of secrets, so nothing may be collected")]
    Redactor {
        #[source]
        source: BuildError,
    },
    #[error("cannot write the bundle")]
    Write {
        #[source]
        source: io::Error,
    },
}

/// Told as the work goes on.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// The next item of so many.
    Item { id: &'a str, number: usize, of: usize },
    /// Something was recorded.
    Recorded(&'a BundleItem),
}

struct Running {
    item: Item,
    pieces: Receiver<Piece>,
    /// For what is recorded here: ids and places come from drop-ins, too.
    redactor: Redactor,
}

/// Collects everything the plan names into the bundle. Fails only when nothing can be made safe or the bundle cannot be
/// written; whatever goes wrong on the machine is a record.
pub fn collect<W: Write>(
    host: Host,
    plan: &Plan,
    bundle: &mut BundleWriter<W>,
    tell: &dyn Fn(Event<'_>),
) -> Result<(), CollectError> {
    let (redactor, search) = known::redactor(&host).map_err(|source| CollectError::Redactor { source })?;
    let (here, elsewhere) = plan.for_host(&host);
    let host = Arc::new(host);
    let note = |bundle: &mut BundleWriter<W>, path: &str, source: &str, trouble: &Trouble| {
        let item = record(&redactor, path, source, trouble);
        tell(Event::Recorded(&item));
        bundle.note(item);
    };
    if search == known::Search::CutShort {
        let why = "there was too much to look at; some are recognised by their form only".to_owned();
        note(bundle, "", "the machine's own secrets", &Trouble::Failed(why));
    }
    for Refused { file, why } in &plan.refused {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        note(bundle, &format!("gather.d/{name}"), &file.to_string_lossy(), why);
    }
    for item in elsewhere {
        note(bundle, &item.to, &item.id, &Trouble::Skipped("it is for machines of another kind"));
    }
    let mut waiting: VecDeque<Item> = here.into();
    let of = waiting.len();
    let mut running: VecDeque<Running> = VecDeque::new();
    for number in 1..=of {
        while running.len() < AT_ONCE
            && let Some(item) = waiting.pop_front()
        {
            running.push_back(start(item, plan.since, &host, &redactor));
        }
        let Some(first) = running.pop_front() else { break };
        tell(Event::Item { id: &first.item.id, number, of });
        first.drain(bundle, tell).map_err(|source| CollectError::Write { source })?;
    }
    let log = gather_log(&bundle.manifest().items);
    let item =
        BundleItem::without_file("gather.log".to_owned(), "landfall".to_owned(), ItemOutcome::Collected);
    bundle.add(item, log.as_bytes()).map_err(|source| CollectError::Write { source })
}

/// What was done, for people: a line for each record.
fn gather_log(items: &[BundleItem]) -> String {
    let mut text = String::new();
    for item in items {
        let BundleItem { path, source, bytes, duration_ms, truncated, .. } = item;
        let replaced: u64 = item.redactions.values().sum();
        let what = match &item.outcome {
            ItemOutcome::Collected => {
                format!("collected, {bytes} bytes, {truncated} left out, {replaced} secrets replaced")
            }
            ItemOutcome::Absent => "not on this machine".to_owned(),
            ItemOutcome::Skipped { reason } => format!("skipped: {reason}"),
            ItemOutcome::Failed { error } => format!("not collected: {error}"),
            ItemOutcome::TimedOut => "given up: it took too long".to_owned(),
            ItemOutcome::Withheld { reason } => format!("withheld: {reason}"),
        };
        text += &format!("{source} -> {path}: {what} ({duration_ms} ms)\n");
        if text.len() > MAX_LOG {
            text += "and more: see manifest.json\n";
            break;
        }
    }
    text
}

fn start(item: Item, since: Option<Timestamp>, host: &Arc<Host>, redactor: &Redactor) -> Running {
    let (sender, pieces) = mpsc::sync_channel(READY);
    let (host, kept, redactor) = (Arc::clone(host), redactor.clone(), redactor.clone());
    let theirs = item.clone();
    let limits = Limits { since, ..item.limits() };
    // Not joined: a thread that hangs in the kernel is left behind, and one whose pieces nobody takes ends by itself.
    thread::spawn(move || {
        let mut sink = Sink::new(redactor, sender, limits);
        let source = source::of(&theirs);
        if let Err(trouble) = source.collect(&host, &mut sink) {
            let to = if theirs.to.is_empty() { &theirs.id } else { &theirs.to };
            sink.note(to, &theirs.id, &trouble);
        }
    });
    Running { item, pieces, redactor: kept }
}

// === impl Running ===

impl Running {
    fn drain<W: Write>(self, bundle: &mut BundleWriter<W>, tell: &dyn Fn(Event<'_>)) -> io::Result<()> {
        let mut recorded = false;
        let patience = self.item.limits().time + GRACE;
        let mut silent_since = Instant::now();
        loop {
            match self.pieces.recv_timeout(SILENCE) {
                Ok(Piece { item, content }) => {
                    recorded = true;
                    silent_since = Instant::now();
                    tell(Event::Recorded(&item));
                    match content {
                        Some(content) => bundle.add(item, &content)?,
                        None => bundle.note(item),
                    }
                }
                // The machine may not live much longer: what it has said so far is safe elsewhere.
                Err(RecvTimeoutError::Timeout) if silent_since.elapsed() < patience => bundle.flush()?,
                Err(RecvTimeoutError::Timeout) => {
                    self.note(bundle, &Trouble::TimedOut, tell);
                    return Ok(());
                }
                Err(RecvTimeoutError::Disconnected) if recorded => return Ok(()),
                // The thread ended without a word: it panicked, or its source forgot to speak.
                Err(RecvTimeoutError::Disconnected) => {
                    let error = "the collector ended without a result".to_owned();
                    self.note(bundle, &Trouble::Failed(error), tell);
                    return Ok(());
                }
            }
        }
    }

    fn note<W: Write>(&self, bundle: &mut BundleWriter<W>, trouble: &Trouble, tell: &dyn Fn(Event<'_>)) {
        let duration_ms = u64::try_from(self.item.limits().time.as_millis()).unwrap_or(u64::MAX);
        let item = record(&self.redactor, &self.item.to, &self.item.id, trouble);
        let item = BundleItem { duration_ms, ..item };
        tell(Event::Recorded(&item));
        bundle.note(item);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bundle::Packing;

    /// An item of the plan with one second, and what is recorded when its collector does this.
    fn outcome(run: impl FnOnce(mpsc::SyncSender<Piece>)) -> ItemOutcome {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("etc/landfall/gather.d");
        std::fs::create_dir_all(&folder).unwrap();
        let text = "[[item]]\nid = \"x\"\nto = \"x.log\"\nseconds = 1\nsource.files.paths = [\"/x\"]\n";
        std::fs::write(folder.join("x.toml"), text).unwrap();
        let host = Host::at(root.path()).unwrap();
        let item = Plan::of(&host).unwrap().items.pop().unwrap();
        let (sender, pieces) = mpsc::sync_channel(READY);
        run(sender);
        let mut bundle =
            BundleWriter::new(Vec::new(), Packing::Gzip, "1", host.identity(), Timestamp::UNIX_EPOCH);
        let redactor = Redactor::builder().build().unwrap();
        Running { item, pieces, redactor }.drain(&mut bundle, &|_| {}).unwrap();
        let manifest = bundle.finish(Timestamp::UNIX_EPOCH).unwrap().manifest;
        let [item] = &manifest.items[..] else { panic!("{:?}", manifest.items) };
        assert_eq!((item.path.as_str(), item.source.as_str()), ("x.log", "x"));
        item.outcome.clone()
    }

    #[test]
    fn a_collector_that_hangs_is_given_up() {
        let mut kept = None;
        assert_eq!(outcome(|sender| kept = Some(sender)), ItemOutcome::TimedOut);
    }

    #[test]
    fn a_collector_that_ends_without_a_word_is_told() {
        let error = "the collector ended without a result".to_owned();
        assert_eq!(outcome(drop), ItemOutcome::Failed { error });
    }
}
