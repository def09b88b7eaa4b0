//! Lines of `name = value`: INI, environments, systemd units, and documents that no parser accepts.

use std::borrow::Cow;

use super::names;
use super::values::Values;

/// Words before a name that do not belong to it.
const PREFIXES: [&str; 7] = ["export ", "set ", "declare -x ", "readonly ", "local ", "env ", "- "];

/// Finds the secret of a line by its field name.
pub(super) fn search(line: &str, values: &mut Values) {
    let line = line.trim();
    if line.is_empty() || line.starts_with(['#', ';', '[']) || line.starts_with("//") {
        return;
    }
    let Some((name, value)) = field(line) else { return };
    if let Some(value) = name.eq_ignore_ascii_case("SetCredential").then(|| value.split_once(':')).flatten() {
        values.secret(landfall_redact::Kind::PASSWORD, value.1);
    }
    for value in variants(value) {
        values.field(name, &value);
    }
    if name.to_ascii_lowercase().ends_with("proxy") && !value.contains("://") {
        super::urls::login(unquoted(value), values);
    }
    // Connection strings: `AccountName=fleet;AccountKey=…`.
    if value.contains(';') {
        for (name, value) in unquoted(line).split(';').filter_map(|part| part.split_once('=')) {
            values.field(name.trim(), value);
        }
    }
}

/// Splits a line into name and value. Names contain no spaces.
fn field(line: &str) -> Option<(&str, &str)> {
    let line = PREFIXES.iter().find_map(|prefix| line.strip_prefix(prefix)).unwrap_or(line);
    let (name, value) = line.split_once(['=', ':'])?;
    let name = name.trim().trim_matches(['"', '\'']);
    let is_name = |c: char| c.is_ascii_alphanumeric() || "_.-/@".contains(c);
    (!name.is_empty() && name.chars().all(is_name)).then(|| (name, value.trim()))
}

/// Returns the value as different readers parse it: with and without quotes, escapes and a trailing comment.
fn variants(value: &str) -> Vec<Cow<'_, str>> {
    let bare = unquoted(value);
    if bare.starts_with("# ") {
        return Vec::new();
    }
    let mut variants = vec![Cow::Borrowed(bare)];
    if bare.len() == value.len() {
        for comment in [" #", " ;", "\t#"] {
            if let Some((value, _)) = value.split_once(comment) {
                variants.push(Cow::Borrowed(unquoted(value.trim())));
            }
        }
    } else if bare.contains('\\') {
        variants.push(Cow::Owned(unescaped(bare)));
    }
    variants
}

/// Removes the surrounding quotes of a value and a trailing comma.
fn unquoted(value: &str) -> &str {
    let value = value.trim();
    let quoted = value.strip_suffix(',').unwrap_or(value);
    for quote in ['"', '\''] {
        if let Some(inner) = quoted.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote)) {
            return inner;
        }
    }
    value
}

fn unescaped(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        plain.extend(if c == '\\' { chars.next() } else { Some(c) });
    }
    plain
}

/// Joins lines that end with a backslash.
pub(super) fn joined(text: &str) -> Cow<'_, str> {
    if text.contains("\\\n") { Cow::Owned(text.replace("\\\n", " ")) } else { Cow::Borrowed(text) }
}

/// Finds secrets that look like numbers in their original form: parsers drop leading zeros.
pub(super) fn digits_of_secrets(text: &str, values: &mut Values) {
    let is_number = |c: char| c.is_ascii_hexdigit() || "._+-xo".contains(c);
    for (name, value) in text.lines().filter_map(|line| field(line.trim())) {
        if value.chars().all(is_number) && names::kind(name).is_some() {
            values.field(name, value);
        }
    }
}
