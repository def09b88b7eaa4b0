//! One file per subcommand: its arguments and what it joins.

pub(crate) mod agent;
pub(crate) mod completions;
pub(crate) mod diagnose;
pub(crate) mod man;
