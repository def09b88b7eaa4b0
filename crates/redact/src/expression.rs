//! Regular expressions of the rules, compiled on first use: most logs need few of them.

use std::sync::OnceLock;

use regex::bytes::{Regex, RegexBuilder};

/// Memory limit of a compiled expression; those of the rules need a tenth.
const SIZE_MAX: usize = 4 << 20;

#[derive(Debug)]
pub(crate) struct Expression {
    source: String,
    compiled: OnceLock<Regex>,
}

// === impl Expression ===

impl Expression {
    pub(crate) fn new(source: String) -> Self {
        Self { source, compiled: OnceLock::new() }
    }

    /// Returns the compiled expression.
    ///
    /// # Panics
    ///
    /// If the expression is invalid. The rules are built in, and a test compiles each of them.
    pub(crate) fn get(&self) -> &Regex {
        self.compiled.get_or_init(|| compile(&self.source).expect("a test compiles each expression"))
    }
}

pub(crate) fn compile(source: &str) -> Result<Regex, regex::Error> {
    RegexBuilder::new(source).unicode(false).size_limit(SIZE_MAX).build()
}
