//! Storage of the last report: written atomically, together with the boot it describes.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use landfall_durable::{self as durable, Access, Disk};
use landfall_model::Secret;
use landfall_model::envelope::{Envelope, ReportId, ReportMessage};
use landfall_model::identity::NodeIdentity;
use landfall_model::report::{Report, State};
use landfall_pki::{PkiError, SigningKey};

/// File of the last report, below the state directory.
pub const REPORT: &str = "report.json";
/// File of the previous boot's last report, kept until the next boot.
const PREVIOUS: &str = "previous-report.json";
/// File of the key that signs reports; it never leaves the machine.
const KEY: &str = "signing.key";
/// Size limit; the agent's reports are below 100 KiB.
pub(crate) const MAX_REPORT: u64 = 4 << 20;
const MAX_KEY: u64 = 4096;

/// The last report while the disk does not have it: a full disk must not prevent reports.
#[derive(Clone, Debug, Default)]
pub struct Unwritten(Arc<Mutex<Option<Vec<u8>>>>);

/// A report in its signed envelope.
#[derive(Clone, Debug, PartialEq)]
pub struct SignedReport {
    pub message: ReportMessage,
    /// The envelope as JSON. It is stored and delivered unchanged.
    pub envelope: Vec<u8>,
}

/// Wraps reports in signed envelopes and stores the last one.
#[expect(missing_debug_implementations, reason = "holds a private key")]
pub struct Keeper<'d> {
    disk: &'d dyn Disk,
    folder: PathBuf,
    key: SigningKey,
    last: Option<SignedReport>,
    /// The file of the last report exists but is unreadable, so its sequence number is unknown.
    lost: bool,
    /// The previous boot's last report, until it is written to its own file.
    before: Option<Vec<u8>>,
    unwritten: Unwritten,
}

#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    #[error("cannot keep reports in `{}`", folder.display())]
    Write {
        folder: PathBuf,
        #[source]
        source: durable::Error,
    },
    #[error("cannot read `{}`", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot use the key that signs reports")]
    Key(#[source] PkiError),
    #[error("cannot put the report into its envelope")]
    Envelope(#[source] serde_json::Error),
    #[error("cannot draw a new id")]
    Random(#[source] getrandom::Error),
}

// === impl Keeper ===

impl<'d> Keeper<'d> {
    /// Opens the state directory, with the key and report of an earlier process or boot if they exist.
    pub fn open(disk: &'d dyn Disk, folder: &Path) -> Result<Self, KeepError> {
        let key = signing_key(disk, folder)?;
        let path = folder.join(REPORT);
        // The next report replaces an unreadable or invalid file.
        let (last, lost) = match disk.read(&path, MAX_REPORT) {
            Ok(envelope) => match Envelope::parse(&envelope).and_then(|parsed| parsed.message()) {
                Ok(message) => (Some(SignedReport { message, envelope }), false),
                Err(_) => (None, true),
            },
            Err(error) => (None, error.kind() != io::ErrorKind::NotFound),
        };
        if lost {
            tracing::warn!(path = %path.display(), "The last report cannot be read and is replaced by the next.");
        }
        let folder = folder.to_owned();
        Ok(Self { disk, folder, key, last, lost, before: None, unwritten: Unwritten::default() })
    }

    pub fn last(&self) -> Option<&SignedReport> {
        self.last.as_ref()
    }

    /// Whether the report differs from the last one. A longer duration of the same hang is not a difference.
    pub fn is_news(&self, node: &NodeIdentity, report: &Report) -> bool {
        let said = |report: &Report| {
            let mut verdict = report.verdict.clone();
            if verdict.state == State::Hung {
                verdict.title.clear();
            }
            verdict
        };
        self.last.as_ref().is_none_or(|last| {
            let causes = |report: &Report| -> Vec<_> {
                report.findings.iter().map(|finding| (finding.cause.clone(), finding.root)).collect()
            };
            let ReportMessage { node: last_node, report: last, .. } = &last.message;
            last_node != node
                || said(last) != said(report)
                || causes(last) != causes(report)
                || last.timeline != report.timeline
        })
    }

    /// Returns a handle to the last report while the disk does not have it.
    pub fn unwritten(&self) -> Unwritten {
        self.unwritten.clone()
    }

    /// Signs the report and writes it to the disk, so that a crash does not lose it. A report that the disk
    /// rejects is kept in memory, and [`Keeper::settle`] returns the reason.
    pub fn keep(
        &mut self,
        node: NodeIdentity,
        report: Report,
        now: Timestamp,
    ) -> Result<&SignedReport, KeepError> {
        let mut random = [0; 10];
        getrandom::fill(&mut random).map_err(KeepError::Random)?;
        let last = self.last.as_ref().map(|last| &last.message);
        let same_boot = last.filter(|last| last.node.boot_id == node.boot_id);
        let mut sequence = same_boot.map_or(1, |last| last.sequence + 1);
        // Receivers would ignore reused numbers of this boot as old. Numbers based on the clock are higher.
        let by_the_clock = u64::try_from(now.as_second()).unwrap_or(0);
        // Boots are numbered in the last report.
        let counted = last.and_then(|last| last.boot_number);
        let mut boot_number = match (same_boot, counted) {
            (Some(_), Some(number)) => number,
            (None, Some(number)) => number.saturating_add(1),
            (_, None) => 1,
        };
        if std::mem::take(&mut self.lost) {
            sequence = sequence.max(by_the_clock);
            boot_number = boot_number.max(by_the_clock);
        }
        // IDs ascend in the order of creation, even if the clock goes back: spools deliver in the order of
        // IDs.
        let id = match last {
            Some(last) => last.id.next(now, random),
            None => ReportId::new(now, random),
        };
        // The previous boot's last report must survive the reboot.
        let before = self.last.as_ref().filter(|_| same_boot.is_none()).map(|last| last.envelope.clone());
        let boot_number = Some(boot_number);
        let mut signed = self.sign(ReportMessage { id, node, boot_number, sequence, time: now, report })?;
        self.before = before.or(self.before.take());
        *self.unwritten.lock() = Some(signed.envelope.clone());
        if self.settle().is_err() {
            // A restarted agent would not know this number and would reuse it.
            signed.message.sequence = signed.message.sequence.max(by_the_clock);
            signed = self.sign(signed.message)?;
            *self.unwritten.lock() = Some(signed.envelope.clone());
        }
        Ok(self.last.insert(signed))
    }

    /// Whether a write is still to be retried.
    pub fn is_behind(&self) -> bool {
        self.unwritten.lock().is_some()
    }

    /// Retries the writes that the disk rejected.
    pub fn settle(&mut self) -> Result<(), KeepError> {
        let Some(bytes) = self.unwritten.lock().clone() else { return Ok(()) };
        if let Some(before) = &self.before {
            self.write(PREVIOUS, before)?;
            self.before = None;
        }
        self.write(REPORT, &bytes)?;
        *self.unwritten.lock() = None;
        Ok(())
    }

    fn sign(&self, message: ReportMessage) -> Result<SignedReport, KeepError> {
        let payload = serde_json::to_vec(&message).map_err(KeepError::Envelope)?;
        let envelope = serde_json::to_vec(&self.key.seal(payload)).map_err(KeepError::Envelope)?;
        Ok(SignedReport { message, envelope })
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<(), KeepError> {
        durable::write(self.disk, &self.folder.join(name), bytes, Access::PRIVATE)
            .map_err(|source| KeepError::Write { folder: self.folder.clone(), source })
    }
}

// === impl Unwritten ===

impl Unwritten {
    pub fn bytes(&self) -> Option<Vec<u8>> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Vec<u8>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the key that signs reports, creating it if there is none.
pub(crate) fn signing_key(disk: &dyn Disk, folder: &Path) -> Result<SigningKey, KeepError> {
    let path = folder.join(KEY);
    match disk.read(&path, MAX_KEY) {
        Ok(bytes) => SigningKey::from_pkcs8(&Secret::new(bytes)).map_err(KeepError::Key),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let (key, document) = SigningKey::generate().map_err(KeepError::Key)?;
            durable::write(disk, &path, document.expose(), Access::PRIVATE)
                .map_err(|source| KeepError::Write { folder: folder.to_owned(), source })?;
            Ok(key)
        }
        Err(source) => Err(KeepError::Read { path, source }),
    }
}
