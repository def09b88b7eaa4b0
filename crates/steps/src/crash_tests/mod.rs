//! Simulates a power failure at every operation of a run, with every possible state of the disk afterwards, and
//! resumes the run.
//!
//! The outcome is the same, and nothing is done twice.

mod matrix;
mod random;
pub(crate) mod script;
mod world;
