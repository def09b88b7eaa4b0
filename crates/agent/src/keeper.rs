//! The last report, on the disk: whole or not at all, with the boot it is about.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use landfall_model::Secret;
use landfall_model::envelope::{Envelope, FORMAT, ReportId, Signature, signed_bytes, written};
use landfall_model::identity::NodeIdentity;
use landfall_model::report::{Report, State};
use landfall_pki::{PkiError, SigningKey};
use landfall_steps::durable::{self, Access, Disk};

/// The last report, below the state folder.
pub const REPORT: &str = "report.json";
/// The last report of the boot before, for as long as this boot lasts.
const PREVIOUS: &str = "previous-report.json";
/// The key that signs reports; it never leaves the machine.
const KEY: &str = "signing.key";
/// A report is below 100 KiB; more is not one of ours.
const MAX_REPORT: u64 = 4 << 20;
const MAX_KEY: u64 = 4096;

/// The last report while the disk does not have it: one that is full is no reason to say nothing.
#[derive(Clone, Debug, Default)]
pub struct Unwritten(Arc<Mutex<Option<Vec<u8>>>>);

/// Puts reports into envelopes and keeps the last one.
#[expect(missing_debug_implementations, reason = "holds a private key")]
pub struct Keeper<'d> {
    disk: &'d dyn Disk,
    folder: PathBuf,
    key: SigningKey,
    last: Option<Envelope>,
    /// There was a last report, and nobody knows its number.
    lost: bool,
    /// What the boot before had come to, until it is on the disk under its own name.
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
    /// Takes up what an earlier process or an earlier boot left in the folder.
    pub fn open(disk: &'d dyn Disk, folder: &Path) -> Result<Self, KeepError> {
        let key = signing_key(disk, folder)?;
        let path = folder.join(REPORT);
        // What cannot be read or understood is replaced by the next report.
        let (last, lost) = match disk.read(&path, MAX_REPORT) {
            Ok(bytes) => match serde_json::from_slice(&bytes) {
                Ok(last) => (Some(last), false),
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

    pub fn last(&self) -> Option<&Envelope> {
        self.last.as_ref()
    }

    /// Whether this says something the last report does not. That a stage hangs for a minute longer is no news.
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
            last.node != *node
                || said(&last.report) != said(report)
                || causes(&last.report) != causes(report)
                || last.report.timeline != report.timeline
        })
    }

    /// Where the last report is while the disk does not have it.
    pub fn unwritten(&self) -> Unwritten {
        self.unwritten.clone()
    }

    /// Signs the report and writes it to the disk: no crash loses it then. What the disk does not take is kept all the same,
    /// and [`Keeper::settle`] says why.
    pub fn keep(
        &mut self,
        node: NodeIdentity,
        report: Report,
        now: Timestamp,
    ) -> Result<&Envelope, KeepError> {
        let mut random = [0; 10];
        getrandom::fill(&mut random).map_err(KeepError::Random)?;
        let same_boot = self.last.as_ref().filter(|last| last.node.boot_id == node.boot_id);
        let mut sequence = same_boot.map_or(1, |last| last.sequence + 1);
        // Numbers of a boot that were used already would be taken for old news. By the clock they are new.
        let by_the_clock = u64::try_from(now.as_second()).unwrap_or(0);
        // The last report is also where boots are counted.
        let counted = self.last.as_ref().and_then(|last| last.boot_number);
        let mut boot_number = match (same_boot, counted) {
            (Some(_), Some(number)) => number,
            (None, Some(number)) => number.saturating_add(1),
            (_, None) => 1,
        };
        if std::mem::take(&mut self.lost) {
            sequence = sequence.max(by_the_clock);
            boot_number = boot_number.max(by_the_clock);
        }
        // In the order they were made, whatever the clock says: spools bring them in the order of their ids.
        let id = match &self.last {
            Some(last) => last.id.next(now, random),
            None => ReportId::new(now, random),
        };
        let boot_number = Some(boot_number);
        let mut envelope =
            Envelope { format: FORMAT, id, node, boot_number, sequence, time: now, report, signature: None };
        let bytes = self.sign(&mut envelope)?;
        // A reboot must not take with it what the boot before had come to.
        if let Some(previous) = self.last.as_ref().filter(|last| last.node.boot_id != envelope.node.boot_id) {
            self.before = Some(written(previous).map_err(KeepError::Envelope)?);
        }
        *self.unwritten.lock() = Some(bytes);
        if self.settle().is_err() {
            // A successor would not know this number and use it again.
            envelope.sequence = envelope.sequence.max(by_the_clock);
            let bytes = self.sign(&mut envelope)?;
            *self.unwritten.lock() = Some(bytes);
        }
        Ok(self.last.insert(envelope))
    }

    /// Whether the disk lacks something.
    pub fn is_behind(&self) -> bool {
        self.unwritten.lock().is_some()
    }

    /// Writes what the disk did not take before.
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

    /// Signs it anew, and gives it as it is written.
    fn sign(&self, envelope: &mut Envelope) -> Result<Vec<u8>, KeepError> {
        envelope.signature = None;
        let signed = serde_json::to_vec(&*envelope).and_then(|bytes| signed_bytes(&bytes));
        let value = hexadecimal(&self.key.sign(&signed.map_err(KeepError::Envelope)?));
        envelope.signature = Some(Signature { key: hexadecimal(&self.key.public_key()), value });
        written(envelope).map_err(KeepError::Envelope)
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

/// The key that signs reports; made when there is none.
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

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
