//! Work on a node, as lists of resumable steps: [`prepare`] lays down the right runtime for the cluster before the
//! kubelet can start.

pub mod prepare;
