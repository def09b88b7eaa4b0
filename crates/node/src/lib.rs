//! Work on a node, as lists of resumable steps.
//!
//! [`prepare`] installs the runtime that matches the cluster before the kubelet starts. [`in_place`] bootstraps a
//! machine again without reinstalling it.

pub mod environment;
pub mod in_place;
pub mod prepare;
pub mod run;
