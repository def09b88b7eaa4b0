//! From what a user names to a report: inputs are recognised by content, unpacked as they are read, cut into chunks of
//! whole lines and scanned on all cores, in constant memory. An input that cannot be read becomes an entry of the
//! report's sources, and the rest is still read.

mod budget;
mod files;
mod format;
mod journal_text;
mod lines;
mod machine;
mod opener;
mod scan;
mod withhold;
mod zip;

use std::fmt;
use std::io::Read;
use std::path::PathBuf;

use landfall_diagnose::Engine;
use landfall_model::chain;
use landfall_model::report::Report;

use self::budget::Budget;
use self::opener::Opener;

pub use self::machine::machine;

/// Something to read.
pub enum Input {
    Path(PathBuf),
    Stream { name: String, reader: Box<dyn Read> },
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

/// Why an input could not be opened.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct Reason(opener::OpenError);

/// Reads all inputs and gives the verdict, with secrets taken out of what it quotes. `seen` is told of bytes as they are
/// read.
///
/// Fails only when not one input could be opened; the first reason is given.
pub fn diagnose(engine: &Engine, inputs: Vec<Input>, seen: &dyn Fn(u64)) -> Result<Report, ReadError> {
    let mut case = engine.open();
    let budget = Budget::default();
    let mut first_failure = None;
    let mut opened = false;
    for input in inputs {
        let mut opener = Opener { engine, case: &mut case, seen, budget: &budget };
        let (name, result) = match input {
            Input::Stream { name, mut reader } => {
                let result = opener.stream(&name, &mut reader, 0);
                let failed = |error| ReadError::Stream { name: name.clone(), source: Reason(error) };
                (name.clone(), result.map_err(failed))
            }
            Input::Path(path) => (path.display().to_string(), files::read(&mut opener, &path)),
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
            withhold::clean(&mut report).map_err(ReadError::Redact)?;
            Ok(report)
        }
    }
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
        }
    }
}
