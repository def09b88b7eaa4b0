//! Rules and causal engine: log lines in, verdict out. No I/O, no clock.
//!
//! A reader splits its input into chunks of complete lines and passes them to [`Engine::scan`], in any order
//! and from any number of threads. The results are added to a [`Case`] in line order. [`Case::finish`]
//! evaluates all of them together: which finding explains which, what a later success has cleared, and which
//! stage never ended.
//!
//! Rules are data: `rules/*.toml`, compiled in ([`RuleSet::embedded`]) or loaded from other files
//! ([`RuleSet::parse`]).

mod case;

mod boots;
mod catalogue;
mod colours;
mod embedded;
#[cfg(test)]
mod example_tests;
mod facts;
mod findings;
mod foreign;
mod hits;
mod klog;
mod line;
mod listings;
mod literals;
mod message;
mod moment;
mod next;
mod npd;
mod origin;
mod pattern;
mod places;
mod reason;
mod records;
mod rules;
mod scan;
mod scope;
mod sections;
mod stages;
mod stream;
mod template;
mod version;
mod weigh;
mod words;

pub mod present;

pub use case::{Case, Clock, SourceId};
pub use catalogue::{Catalogue, CauseEntry};
pub use facts::{Fact, Observation, UnitState};
pub use origin::{JournalFields, Origin, Origins};
pub use rules::{RuleError, RuleSet};
pub use scan::{Engine, EntryOrigin, Scan};
pub use scope::Pod;
pub use stream::{Stream, StreamKind};
