//! Evidence collection from a machine, into a bundle or for a diagnosis on the machine itself.
//!
//! A [`Plan`] lists the items; each kind of source is implemented in its own file. Each item has its own
//! thread, limits and outcome: an item that fails or hangs leaves only a record. Files enter the bundle in
//! the order of the plan, regardless of which item finishes first. All evidence is redacted in the item's
//! thread.

mod direct;
pub mod dns;
mod forbidden;
mod host;
mod identity;
mod known;
mod piece;
mod plan;
mod provider;
mod secrets;
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
pub(crate) use self::piece::{Piece, Purpose, Record, Trouble};
#[cfg(feature = "schema")]
pub use self::plan::drop_in_schema;
pub use self::plan::{DROP_INS, Plan, PlanError};
use self::plan::{Item, Refused, Since, Spec};
pub use self::since::{SinceError, parse_since};
use self::sink::{Limits, Sink, record};
use crate::bundle::BundleWriter;

/// Items collected concurrently. Most wait for a disk or a network, and each needs a few megabytes.
const AT_ONCE: usize = 3;

/// Parts that an item may buffer while earlier items are written.
const READY: usize = 1;

/// Time granted beyond an item's own limit for finishing its current work.
const GRACE: Duration = Duration::from_secs(2);

/// Maximum size of the collection log; the manifest is complete.
const MAX_LOG: usize = 1 << 20;

/// After this long without data, buffered data is compressed and sent.
const SILENCE: Duration = Duration::from_millis(500);

/// Reason why nothing was collected.
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

/// A progress event.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// Item `number` of `of` starts.
    Item { id: &'a str, number: usize, of: usize },
    /// An item was recorded.
    Recorded(&'a BundleItem),
}

/// The items of a plan, collected in threads and returned in the order of the plan.
pub(crate) struct Collection {
    host: Arc<Host>,
    redactor: Redactor,
    since: Option<Timestamp>,
    purpose: Purpose,
    waiting: VecDeque<Item>,
    running: VecDeque<Running>,
}

/// An item whose thread has been started.
pub(crate) struct Running {
    item: Item,
    pieces: Receiver<Piece>,
    /// For records made here: IDs and paths may come from drop-ins.
    redactor: Redactor,
}

/// Collects all items of the plan into the bundle.
///
/// Fails only if the redactor cannot be built or the bundle cannot be written; other failures become records.
pub fn collect<W: Write>(
    host: Host,
    plan: &Plan,
    bundle: &mut BundleWriter<W>,
    tell: &dyn Fn(Event<'_>),
) -> Result<(), CollectError> {
    let (mut collection, left_out) =
        Collection::start(host, plan, Purpose::Bundle).map_err(|source| CollectError::Redactor { source })?;
    for item in left_out {
        tell(Event::Recorded(&item));
        bundle.note(item);
    }
    let of = collection.waiting.len();
    for number in 1..=of {
        let Some(first) = collection.next() else { break };
        tell(Event::Item { id: &first.item.id, number, of });
        first.drain(bundle, tell).map_err(|source| CollectError::Write { source })?;
    }
    let log = gather_log(&bundle.manifest().items);
    let item =
        BundleItem::without_file("gather.log".to_owned(), "landfall".to_owned(), ItemOutcome::Collected);
    bundle.add(item, log.as_bytes()).map_err(|source| CollectError::Write { source })
}

/// Formats the human-readable log: one line per record.
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

/// Removes items whose entries another item also reads: a diagnosis must not count a line twice.
fn without_parts_of_journal(items: &mut Vec<Item>) {
    let whole = items.iter().find_map(|item| match item.source {
        Spec::Journal { unit: None, since } => Some(since),
        _ => None,
    });
    let Some(whole) = whole else { return };
    items.retain(|item| match &item.source {
        Spec::Journal { unit: Some(_), since } => whole == Since::Boot && *since == Since::All,
        Spec::Journals { .. } => false,
        _ => true,
    });
}

// === impl Collection ===

impl Collection {
    /// Prepares the items for this machine and records omitted ones. Fails if the redactor cannot be built.
    pub(crate) fn start(
        host: Host,
        plan: &Plan,
        purpose: Purpose,
    ) -> Result<(Self, Vec<BundleItem>), BuildError> {
        let (redactor, search) = known::redactor(&host)?;
        let (mut here, elsewhere) = plan.for_host(&host);
        let note = |path: &str, source: &str, trouble: &Trouble| record(&redactor, path, source, trouble);
        let mut left_out = Vec::new();
        if search == known::Search::CutShort {
            let why = "there was too much to look at; some are recognised by their form only".to_owned();
            left_out.push(note("", "the machine's own secrets", &Trouble::Failed(why)));
        }
        if !host.refresh().is_complete() {
            let why = "too many to enumerate; files with several names are withheld".to_owned();
            left_out.push(note("", "files that hold secrets", &Trouble::Failed(why)));
        }
        for Refused { file, why } in &plan.refused {
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            left_out.push(note(&format!("gather.d/{name}"), &file.to_string_lossy(), why));
        }
        for item in elsewhere {
            let trouble = Trouble::Skipped("it is for machines of another kind");
            left_out.push(note(&item.to, &item.id, &trouble));
        }
        if purpose == Purpose::Diagnosis {
            without_parts_of_journal(&mut here);
        }
        let (waiting, running) = (here.into(), VecDeque::new());
        let host = Arc::new(host);
        Ok((Self { host, redactor, since: plan.since, purpose, waiting, running }, left_out))
    }

    /// Returns the next item. It and the following ones are already being collected.
    pub(crate) fn next(&mut self) -> Option<Running> {
        while self.running.len() < AT_ONCE
            && let Some(item) = self.waiting.pop_front()
        {
            let running = self.run(item);
            self.running.push_back(running);
        }
        self.running.pop_front()
    }

    pub(crate) fn host(&self) -> &Host {
        &self.host
    }

    /// Returns the redactor with the machine's own secrets.
    pub(crate) fn redactor(&self) -> &Redactor {
        &self.redactor
    }

    fn run(&self, item: Item) -> Running {
        let (sender, pieces) = mpsc::sync_channel(READY);
        let (host, redactor) = (Arc::clone(&self.host), self.redactor.clone());
        let theirs = item.clone();
        let limits = Limits { since: self.since, ..item.limits() };
        let purpose = self.purpose;
        // Not joined: a thread that hangs in the kernel is abandoned, and a thread without a receiver ends by
        // itself.
        thread::spawn(move || {
            let mut sink = Sink::new(redactor, sender, limits, purpose);
            let source = source::of(&theirs);
            if let Err(trouble) = source.collect(&host, &mut sink) {
                let to = if theirs.to.is_empty() { &theirs.id } else { &theirs.to };
                sink.note(to, &theirs.id, &trouble);
            }
        });
        Running { item, pieces, redactor: self.redactor.clone() }
    }
}

// === impl Running ===

impl Running {
    /// Returns the next piece; `None` at the end. Fails if the item exceeded its time.
    pub(crate) fn next(&self) -> Result<Option<Piece>, Trouble> {
        match self.pieces.recv_timeout(self.item.limits().time + GRACE) {
            Ok(piece) => Ok(Some(piece)),
            Err(RecvTimeoutError::Disconnected) => Ok(None),
            Err(RecvTimeoutError::Timeout) => Err(Trouble::TimedOut),
        }
    }

    pub(crate) fn id(&self) -> &str {
        &self.item.id
    }

    /// Returns the location that a report cites: the file or journal itself, or `landfall:ID` for the output
    /// of our own queries.
    pub(crate) fn location(&self, record: &BundleItem) -> String {
        let Item { id, to, source, .. } = &self.item;
        if matches!(source, Spec::Files { .. } | Spec::Journal { .. } | Spec::Journals { .. }) {
            return record.source.clone();
        }
        let is_folder = to.is_empty() || to.ends_with('/');
        let file = record.path.strip_prefix(to.as_str()).or_else(|| record.path.rsplit('/').next());
        match file.filter(|file| is_folder && !file.is_empty() && file != id) {
            Some(file) => format!("landfall:{id}/{file}"),
            None => format!("landfall:{id}"),
        }
    }

    fn drain<W: Write>(self, bundle: &mut BundleWriter<W>, tell: &dyn Fn(Event<'_>)) -> io::Result<()> {
        let mut recorded = false;
        let patience = self.item.limits().time + GRACE;
        let mut silent_since = Instant::now();
        loop {
            match self.pieces.recv_timeout(SILENCE) {
                Ok(Piece::Record(Record { item, content })) => {
                    recorded = true;
                    silent_since = Instant::now();
                    tell(Event::Recorded(&item));
                    match content {
                        Some(content) => bundle.add(item, &content)?,
                        None => bundle.note(item),
                    }
                }
                // Diagnosis-only pieces do not occur here.
                Ok(_) => {}
                // The machine may fail soon: flushed data is already safe elsewhere.
                Err(RecvTimeoutError::Timeout) if silent_since.elapsed() < patience => bundle.flush()?,
                Err(RecvTimeoutError::Timeout) => {
                    self.note(bundle, &Trouble::TimedOut, tell);
                    return Ok(());
                }
                Err(RecvTimeoutError::Disconnected) if recorded => return Ok(()),
                // The thread ended without a result: it panicked, or its source returned nothing.
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

    /// Runs one item with a limit of one second and returns its recorded outcome.
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
