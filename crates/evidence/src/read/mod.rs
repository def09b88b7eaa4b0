//! From what a user names to a report: inputs are recognised by content, unpacked as they are read, cut into chunks of
//! whole lines and scanned on all cores, in constant memory. An input that cannot be read becomes an entry of the
//! report's sources, and the rest is still read.

mod budget;
mod files;
mod format;
mod journal_text;
mod lines;
mod opener;
mod scan;
mod withhold;
mod zip;

use std::io;
use std::path::PathBuf;

use landfall_diagnose::Engine;
use landfall_model::chain;
use landfall_model::report::Report;

use self::budget::Budget;
use self::opener::Opener;

/// Something to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    Path(PathBuf),
    Stdin,
}

/// Why nothing at all could be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("cannot read `{}`", path.display())]
    Open {
        path: PathBuf,
        #[source]
        source: Reason,
    },
    #[error("`{}` holds no file that could be read", path.display())]
    NoFiles { path: PathBuf },
    #[error("cannot read standard input")]
    Stdin {
        #[source]
        source: Reason,
    },
    #[error("`{}` is {kind}, not a file or a folder", path.display())]
    Special { path: PathBuf, kind: &'static str },
    #[error("cannot prepare the redaction of secrets, without which nothing is shown")]
    Redact(#[source] landfall_redact::BuildError),
}

/// Why an input could not be opened.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct Reason(opener::OpenError);

/// Reads all inputs and gives the verdict, with secrets taken out of what it quotes. `seen` is told of bytes as they are
/// read.
///
/// Fails only when not one input could be opened; the first reason is given.
pub fn diagnose(engine: &Engine, inputs: &[Input], seen: &dyn Fn(u64)) -> Result<Report, ReadError> {
    let mut case = engine.open();
    let budget = Budget::default();
    let mut first_failure = None;
    let mut opened = false;
    for input in inputs {
        let mut opener = Opener { engine, case: &mut case, seen, budget: &budget };
        let (name, result) = match input {
            Input::Stdin => {
                let read = opener.stream("stdin", &mut io::stdin().lock(), 0);
                ("stdin".to_owned(), read.map_err(|error| ReadError::Stdin { source: Reason(error) }))
            }
            Input::Path(path) => (path.display().to_string(), files::read(&mut opener, path)),
        };
        match result {
            Ok(()) => opened = true,
            Err(error) => {
                case.fail_source(&name, chain(&error).to_string());
                first_failure.get_or_insert(error);
            }
        }
    }
    match first_failure {
        Some(error) if !opened => Err(error),
        _ => {
            let mut report = case.finish();
            withhold::secrets(&mut report).map_err(ReadError::Redact)?;
            Ok(report)
        }
    }
}
