//! Words that lines, programs and names of sources are compared with: data, explained in `words.toml`.

use std::sync::LazyLock;

use landfall_model::Phase;
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Words {
    pub(crate) quoting_keys: Vec<String>,
    pub(crate) naming: Vec<String>,
    pub(crate) usual_programs: Vec<String>,
    pub(crate) status_texts: Vec<String>,
    pub(crate) bootstrap_programs: Vec<String>,
    pub(crate) machine_logs: Vec<String>,
    pub(crate) user_kinds: Vec<String>,
    pub(crate) known_units: Vec<String>,
    pub(crate) logfmt_fields: Vec<String>,
    pub(crate) wanted: Vec<Wanted>,
}

/// Evidence that may be missing.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Wanted {
    pub(crate) what: String,
    pub(crate) known_as: Vec<String>,
    pub(crate) phases: Vec<Phase>,
}

pub(crate) static WORDS: LazyLock<Words> = LazyLock::new(|| {
    toml::from_str(include_str!("words.toml")).expect("the file is in the binary, and tests read it")
});
