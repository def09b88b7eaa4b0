//! Evidence and its paths to the engine.
//!
//! [`collect`] collects evidence from a machine, and [`bundle`] packages it. [`read`] opens users' inputs:
//! bundles, files, directories and standard input.

pub mod bundle;
pub mod collect;
pub mod console;
pub mod cri;
pub mod read;
