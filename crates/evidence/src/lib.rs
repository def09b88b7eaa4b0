//! Evidence: what is read, and how it comes to the engine.
//!
//! [`collect`] asks a machine for everything that tells its story, [`bundle`] carries it, and [`read`] opens what users
//! have: bundles, files, folders, standard input.

pub mod bundle;
pub mod collect;
pub mod console;
pub mod read;
