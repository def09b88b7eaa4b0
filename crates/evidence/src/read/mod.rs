//! Reading of a diagnosis' inputs, in constant memory.
//!
//! Formats are detected by content. Streams are decompressed, split into chunks of complete lines, and scanned on
//! all cores. An unreadable input becomes an entry in the report's sources, and the others are still read.

mod archives;
mod budget;
pub mod evtx;
mod files;
mod format;
mod journal_text;
pub mod kmsg;
mod lines;
mod machine;
mod opener;
mod owner;
mod records;
mod scan;
pub mod tar;
pub mod utf16;
mod withhold;
pub mod zip;

use std::fmt;
use std::io::Read;
use std::path::PathBuf;

use landfall_diagnose::Engine;
use landfall_model::chain;
use landfall_model::report::Report;
use landfall_redact::Redactor;

use self::budget::Budget;
use self::opener::{Opener, Outcome};
use crate::collect::{Host, Plan};

pub use self::journal_text::JournalLines;
pub(crate) use self::journal_text::{Parts, parts_of_entry};
pub use self::owner::stream_of_file;
pub use self::withhold::clean_with;

/// An input of a diagnosis.
pub enum Input {
    Path(PathBuf),
    Stream {
        name: String,
        reader: Box<dyn Read>,
    },
    /// The local machine or a mounted disk: all items of the plan.
    Machine {
        host: Host,
        plan: Plan,
    },
}

/// Reason why no input could be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("cannot read `{}`", path.display())]
    Open {
        path: PathBuf,
        #[source]
        source: Reason,
    },
    #[error("cannot read {name}")]
    Stream {
        name: String,
        #[source]
        source: Reason,
    },
    #[error("`{}` is {kind}, not a file or a folder", path.display())]
    Special { path: PathBuf, kind: &'static str },
    #[error("cannot prepare the redaction of secrets, without which nothing is shown")]
    Redact(#[source] landfall_redact::BuildError),
}

/// Reason why an input could not be opened.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct Reason(opener::OpenError);

/// The report on the readable inputs, and the unreadable ones.
#[derive(Debug)]
pub struct Reading {
    pub report: Report,
    pub unread: Vec<ReadError>,
}

/// Like [`read`], but returns only the report.
pub fn diagnose(engine: &Engine, inputs: Vec<Input>, seen: &dyn Fn(u64)) -> Result<Report, ReadError> {
    read(engine, inputs, seen).map(|reading| reading.report)
}

/// Reads all inputs and returns the report, with secrets in quoted lines redacted.
///
/// `seen` is called with the number of bytes read.
///
/// Fails only if no input could be read, with the first reason.
pub fn read(engine: &Engine, inputs: Vec<Input>, seen: &dyn Fn(u64)) -> Result<Reading, ReadError> {
    let mut case = engine.open();
    let budget = Budget::default();
    let mut unread = Vec::new();
    let mut opened = false;
    let mut redactor = None;
    for input in inputs {
        let outcome = Outcome::default();
        let mut opener = Opener { engine, case: &mut case, seen, budget: &budget, outcome, metadata: None };
        let (name, result) = match input {
            Input::Stream { name, mut reader } => {
                let failed = |error| ReadError::Stream { name: name.clone(), source: Reason(error) };
                let result = opener.given(&name, &mut reader).and_then(|()| opener.outcome.or_failure());
                (name.clone(), result.map_err(failed))
            }
            Input::Path(path) => {
                let failed = |error| ReadError::Open { path: path.clone(), source: Reason(error) };
                let result = files::read(&mut opener, &path);
                let result = result.and_then(|()| opener.outcome.or_failure().map_err(failed));
                (path.display().to_string(), result)
            }
            Input::Machine { host, plan } => {
                let known = machine::read(&mut opener, host, &plan).map_err(ReadError::Redact)?;
                redactor = Some(known);
                ("machine".to_owned(), Ok(()))
            }
        };
        match result {
            Ok(()) => opened = true,
            Err(error) => {
                case.fail_source(&name, chain(&error).to_string());
                unread.push(error);
            }
        }
    }
    if !opened && !unread.is_empty() {
        return Err(unread.swap_remove(0));
    }
    let mut report = case.finish();
    let redactor = match redactor {
        Some(redactor) => redactor,
        None => Redactor::builder().build().map_err(ReadError::Redact)?,
    };
    clean_with(&mut report, &redactor);
    Ok(Reading { report, unread })
}

// === impl Input ===

impl Input {
    pub fn stdin() -> Self {
        Self::Stream { name: "stdin".to_owned(), reader: Box::new(std::io::stdin().lock()) }
    }
}

impl fmt::Debug for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => f.debug_tuple("Path").field(path).finish(),
            Self::Stream { name, .. } => f.debug_tuple("Stream").field(name).finish(),
            Self::Machine { host, .. } => f.debug_tuple("Machine").field(&host.root()).finish(),
        }
    }
}
