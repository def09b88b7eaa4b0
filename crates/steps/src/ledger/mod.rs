//! The record of a run on disk.
//!
//! ```text
//! STATE/RUN/lock                       one process per run
//! STATE/RUN/ATTEMPT/ledger-0.jsonl     even generations
//! STATE/RUN/ATTEMPT/ledger-1.jsonl     odd generations
//! ```
//!
//! Each file has two lines: a header with format, length and SHA-256 of the second line, and the [`RunRecord`] as
//! JSON. A change replaces the older file, so the previous generation always exists; the newest undamaged one counts.
//! An attempt has its own directory and keeps it, so that a late request finds its outcome instead of starting again.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use landfall_durable::{self as durable, Access, Disk, Lock};
use landfall_model::step::{Event, FORMAT, StepRecord, StepState};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::boot::BootId;
use crate::machine::IllegalMove;
use crate::plan::Plan;
use crate::record::{Now, RunRecord};

/// A ledger has a few kilobytes; a larger one was written by another program or has a value that belongs in a file.
const MAX_LEDGER_BYTES: u64 = 4 * 1024 * 1024;
/// File names of both generations.
const SLOTS: [&str; 2] = ["ledger-0.jsonl", "ledger-1.jsonl"];

/// The ledger of one attempt, locked by this process.
#[derive(Debug)]
pub struct Ledger {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    boot: BootId,
    record: RunRecord,
    /// The newest generation was damaged when the ledger was opened.
    recovered: bool,
    _lock: Box<dyn Lock>,
}

#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    #[error("cannot write the ledger")]
    Write(#[source] durable::Error),
    #[error("cannot read `{path}`")]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("another process is working on this run: it holds `{path}`")]
    Busy { path: PathBuf },
    #[error("cannot lock `{path}`")]
    Lock {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(
        "`{path}` has format {format}; this version reads formats up to {FORMAT}: continue with the version that wrote it"
    )]
    Newer { path: PathBuf, format: u32 },
    #[error(
        "no complete record is left in `{dir}`: inspect the machine, then remove the directory to start again"
    )]
    Damaged { dir: PathBuf },
    #[error("the ledger in `{dir}` belongs to `{run}` {attempt}, not to this request")]
    Foreign { dir: PathBuf, run: String, attempt: String },
    #[error(
        "the ledger in `{dir}` has other steps: another version started it; continue with that version or abandon it"
    )]
    OtherSteps { dir: PathBuf },
    #[error("attempt {attempt} of this run is not finished: resume or abandon it first")]
    Unfinished { attempt: String },
    #[error("the record of the run has {bytes} bytes, more than the {MAX_LEDGER_BYTES} a ledger takes")]
    TooLarge { bytes: u64 },
    #[error("cannot write the record of the run as JSON")]
    Encode(#[source] serde_json::Error),
    #[error("the run does not allow this")]
    Illegal(#[source] IllegalMove),
}

#[derive(Debug, Serialize, Deserialize)]
struct Header {
    format: u32,
    bytes: u64,
    sha256: String,
}

/// The format only: a newer header may not have the other fields.
#[derive(Debug, Deserialize)]
struct Format {
    format: u32,
}

/// The content of one file.
enum Slot {
    Absent,
    Damaged,
    Whole(Box<RunRecord>),
}

/// Reads every recorded attempt of a run, for observers. Takes no lock and changes nothing.
pub fn read_all(disk: &dyn Disk, state: &Path, run: &str) -> Result<Vec<RunRecord>, LedgerError> {
    let dir = state.join(run);
    let names = match disk.names(&dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        names => names.map_err(|source| LedgerError::Read { path: dir.clone(), source })?,
    };
    let is_attempt = |name: &&std::ffi::OsString| {
        name.to_str()
            .is_some_and(|name| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_hexdigit()))
    };
    let mut records = Vec::new();
    for name in names.iter().filter(is_attempt) {
        if let Some((record, _)) = load(disk, &dir.join(name))? {
            records.push(record);
        }
    }
    Ok(records)
}

// === impl Ledger ===

impl Ledger {
    /// Opens the ledger of a plan's attempt, or creates it.
    ///
    /// Creates `state`, for example `/var/lib/landfall`, if its parent directory exists.
    pub fn open(disk: Arc<dyn Disk>, state: &Path, plan: &Plan, boot: BootId) -> Result<Self, LedgerError> {
        let run_dir = state.join(&plan.name);
        for dir in [state, &run_dir] {
            durable::create_dir(&*disk, dir, Access::PRIVATE_DIR).map_err(LedgerError::Write)?;
        }
        let lock = lock(&*disk, run_dir.join("lock"))?;
        let unfinished = |record: &RunRecord| record.attempt() != plan.attempt && record.ended().is_none();
        if let Some(other) = read_all(&*disk, state, &plan.name)?.into_iter().find(unfinished) {
            return Err(LedgerError::Unfinished { attempt: other.attempt().to_owned() });
        }
        let dir = run_dir.join(&plan.attempt);
        durable::create_dir(&*disk, &dir, Access::PRIVATE_DIR).map_err(LedgerError::Write)?;
        let (record, recovered) = match load(&*disk, &dir)? {
            None => (RunRecord::new(plan, &boot), false),
            Some((record, recovered)) => {
                if record.run() != plan.name || record.attempt() != plan.attempt {
                    let (run, attempt) = (record.run().to_owned(), record.attempt().to_owned());
                    return Err(LedgerError::Foreign { dir, run, attempt });
                }
                let recorded = record.steps().iter().map(|step| step.name.as_str());
                if !recorded.eq(plan.steps.iter().map(|step| step.spec.name)) {
                    return Err(LedgerError::OtherSteps { dir });
                }
                (record, recovered)
            }
        };
        Ok(Self { disk, dir, boot, record, recovered, _lock: lock })
    }

    pub fn record(&self) -> &RunRecord {
        &self.record
    }

    /// Abandons an unfinished attempt permanently, whatever its steps, so that another request can start.
    pub fn abandon(
        disk: &Arc<dyn Disk>,
        state: &Path,
        run: &str,
        attempt: &str,
        reason: &str,
        boot: &BootId,
    ) -> Result<(), LedgerError> {
        let lock = lock(&**disk, state.join(run).join("lock"))?;
        let dir = state.join(run).join(attempt);
        let Some((record, recovered)) = load(&**disk, &dir)? else {
            return Err(LedgerError::Damaged { dir });
        };
        let mut ledger = Self { disk: disk.clone(), dir, boot: boot.clone(), record, recovered, _lock: lock };
        ledger.settle()?;
        ledger.change(|record, now| record.abandon(reason.to_owned(), now)).map(drop)
    }

    /// Syncs the disk: writes of a process that died during a step may not be durable yet, although `check` sees
    /// them.
    fn settle(&self) -> Result<(), LedgerError> {
        let is_interrupted =
            |step: &StepRecord| matches!(step.state, StepState::Applying | StepState::RollingBack);
        if self.record.steps().iter().any(is_interrupted) {
            durable::sync_all(&*self.disk).map_err(LedgerError::Write)?;
        }
        Ok(())
    }

    /// Allows another attempt of a failed run, after an administrator has fixed the problem.
    pub fn reopen(&mut self) -> Result<Vec<Event>, LedgerError> {
        self.change(RunRecord::reopen)
    }

    pub(crate) fn boot(&self) -> &BootId {
        &self.boot
    }

    /// Starts the run in this process.
    pub(crate) fn enter(&mut self, plan: &Plan) -> Result<Vec<Event>, LedgerError> {
        self.settle()?;
        let recovered = self.recovered;
        let events = self.change(|record, now| record.enter(plan.titles(), recovered, now))?;
        self.recovered = false;
        Ok(events)
    }

    /// Changes the record, on disk before in memory, and returns the events of the change.
    ///
    /// After an error nothing has changed for this process; the disk has the old record or the new one.
    pub(crate) fn change(
        &mut self,
        change: impl FnOnce(&mut RunRecord, Now<'_>) -> Result<(), IllegalMove>,
    ) -> Result<Vec<Event>, LedgerError> {
        let mut next = self.record.clone();
        let last = next.last_sequence();
        change(&mut next, Now { boot: &self.boot, time: Timestamp::now() }).map_err(LedgerError::Illegal)?;
        next.generation += 1;
        let bytes = encode(&next)?;
        let path = self.dir.join(SLOTS[usize::from(next.generation % 2 == 1)]);
        durable::write(&*self.disk, &path, &bytes, Access::PRIVATE).map_err(LedgerError::Write)?;
        self.record = next;
        Ok(self.record.events_after(last).to_vec())
    }
}

fn lock(disk: &dyn Disk, path: PathBuf) -> Result<Box<dyn Lock>, LedgerError> {
    disk.lock(&path).map_err(|source| match source.kind() {
        io::ErrorKind::WouldBlock => LedgerError::Busy { path },
        _ => LedgerError::Lock { path, source },
    })
}

/// Returns the newest undamaged record of an attempt, and whether another, possibly newer one was damaged.
fn load(disk: &dyn Disk, dir: &Path) -> Result<Option<(RunRecord, bool)>, LedgerError> {
    let mut newest: Option<RunRecord> = None;
    let mut damaged = false;
    for slot in SLOTS {
        match read_slot(disk, &dir.join(slot))? {
            Slot::Absent => {}
            Slot::Damaged => damaged = true,
            Slot::Whole(record) => {
                if newest.as_ref().is_none_or(|newest| newest.generation < record.generation) {
                    newest = Some(*record);
                }
            }
        }
    }
    match newest {
        None if damaged => Err(LedgerError::Damaged { dir: dir.to_owned() }),
        None => Ok(None),
        Some(record) => Ok(Some((record, damaged))),
    }
}

fn read_slot(disk: &dyn Disk, path: &Path) -> Result<Slot, LedgerError> {
    match disk.read(path, MAX_LEDGER_BYTES) {
        Ok(bytes) => decode(&bytes).map_or_else(
            |newer| Err(LedgerError::Newer { path: path.to_owned(), format: newer.format }),
            |record| Ok(record.map_or(Slot::Damaged, |record| Slot::Whole(Box::new(record)))),
        ),
        Err(error) => match error.kind() {
            io::ErrorKind::NotFound => Ok(Slot::Absent),
            io::ErrorKind::FileTooLarge => Ok(Slot::Damaged),
            _ => Err(LedgerError::Read { path: path.to_owned(), source: error }),
        },
    }
}

fn encode(record: &RunRecord) -> Result<Vec<u8>, LedgerError> {
    let mut body = serde_json::to_vec(record).map_err(LedgerError::Encode)?;
    let header =
        Header { format: FORMAT, bytes: body.len() as u64, sha256: hex::encode(Sha256::digest(&body)) };
    let mut bytes = serde_json::to_vec(&header).map_err(LedgerError::Encode)?;
    bytes.push(b'\n');
    bytes.append(&mut body);
    bytes.push(b'\n');
    let length = bytes.len() as u64;
    if length > MAX_LEDGER_BYTES { Err(LedgerError::TooLarge { bytes: length }) } else { Ok(bytes) }
}

/// Decodes the record; `None` when the bytes are damaged.
///
/// A newer format is an error: going back to the previous generation would undo the changes of the newer version.
fn decode(bytes: &[u8]) -> Result<Option<RunRecord>, Format> {
    let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else { return Ok(None) };
    let (first, rest) = (&bytes[..end], &bytes[end + 1..]);
    match serde_json::from_slice::<Format>(first) {
        Ok(newer) if newer.format > FORMAT => return Err(newer),
        _ => {}
    }
    let Ok(header) = serde_json::from_slice::<Header>(first) else { return Ok(None) };
    let Some(body) = rest.strip_suffix(b"\n") else { return Ok(None) };
    if body.len() as u64 != header.bytes || hex::encode(Sha256::digest(body)) != header.sha256 {
        return Ok(None);
    }
    Ok(serde_json::from_slice(body).ok())
}

#[cfg(test)]
mod tests;
