//! Kubernetes Secret objects: all values in `data` and `stringData` are redacted, and names are kept.
//!
//! The trigger is the object's `kind`; its data may precede it (in `kubectl`'s field order) or follow it.
//! Only the same block of text is considered.

use memchr::{memchr, memmem, memrchr};

use crate::Kind;
use crate::hit::{Hit, What};
use crate::pseudonym::Pseudonyms;

/// Lines before and after the kind that may belong to the same object: Secrets have at most 1 MiB, mostly in
/// a few long lines.
const OBJECT_LINES_MAX: usize = 1024;

/// Redacts the data values of a Secret, whose kind ends at `kind_end` in `line`.
pub(crate) fn find(
    text: &[u8],
    line: (usize, usize),
    kind_end: usize,
    pseudonyms: &Pseudonyms,
    hits: &mut Vec<Hit>,
) {
    // `SecretList`, `SecretProviderClass`: other kinds.
    if text[kind_end..line.1].first().is_some_and(u8::is_ascii_alphanumeric) {
        return;
    }
    let mut mark = |start: usize, end: usize| {
        let what = What::Mark(Kind::KUBERNETES_SECRET, pseudonyms.tag(&text[start..end]));
        hits.push(Hit { start, end, what });
    };
    if !find_compact(text, line, &mut mark) {
        find_in_lines(text, line, &mut mark);
    }
}

/// Redacts JSON on one line, escaped or not: the complete text between the braces of `data`.
fn find_compact(text: &[u8], (start, end): (usize, usize), mark: &mut impl FnMut(usize, usize)) -> bool {
    let mut found = false;
    let line = &text[start..end];
    for data in memmem::find_iter(line, b"ata") {
        let rest = &line[data + 3..];
        let lead = rest.iter().take_while(|byte| matches!(byte, b'\\' | b'"' | b':' | b' ')).count();
        let opens = rest.get(lead) == Some(&b'{') && rest[..lead].contains(&b':');
        let is_name = matches!(line[..data].last(), Some(b'd' | b'D')) && !line[..data].ends_with(b"metad");
        if opens && is_name {
            let inner = data + 3 + lead + 1;
            let mut depth = 1;
            let close = line[inner..].iter().position(|byte| {
                depth += i32::from(*byte == b'{') - i32::from(*byte == b'}');
                depth == 0
            });
            let len = close.unwrap_or(line.len() - inner);
            if len > 0 {
                mark(start + inner, start + inner + len);
            }
            found = true;
        }
    }
    found
}

/// Redacts YAML, or JSON with one field per line: the values on the lines below `data`, at the level of the
/// kind.
fn find_in_lines(text: &[u8], kind_line: (usize, usize), mark: &mut impl FnMut(usize, usize)) {
    let level = level(&text[kind_line.0..kind_line.1]);
    let mut first = kind_line.0;
    for _ in 0..OBJECT_LINES_MAX {
        let Some(feed) = first.checked_sub(1) else { break };
        let start = memrchr(b'\n', &text[..feed]).map_or(0, |feed| feed + 1);
        let line = &text[start..feed];
        if starts_item(&text[first..], level) || !belongs(line, level) {
            break;
        }
        first = start;
    }
    let mut at = first;
    let mut inside = false;
    for _ in 0..2 * OBJECT_LINES_MAX {
        if at >= text.len() {
            break;
        }
        let end = memchr(b'\n', &text[at..]).map_or(text.len(), |len| at + len);
        let line = &text[at..end];
        if at > kind_line.0 && (starts_item(line, level) || !belongs(line, level)) {
            break;
        }
        let content = line.trim_ascii();
        if self::level(line) <= level {
            let name = content.strip_prefix(b"- ").unwrap_or(content);
            inside = [&b"data:"[..], b"stringData:", b"\"data\": {", b"\"stringData\": {"].contains(&name);
        } else if inside && !content.is_empty() {
            let lead = line.len() - line.trim_ascii_start().len();
            let name_len = memmem::find(content, b": ").map_or(0, |colon| colon + 2);
            let value = content[name_len..].trim_ascii_start();
            let skip = content.len() - value.len();
            if !content.ends_with(b":") && !value.is_empty() && !value.starts_with(b"***<") {
                mark(at + lead + skip, at + lead + content.len());
            }
        }
        at = end + 1;
    }
}

/// Returns whether a line starts a list item with fields at `level`.
fn starts_item(line: &[u8], level: usize) -> bool {
    self::level(line) == level && line[..level].contains(&b'-')
}

fn level(line: &[u8]) -> usize {
    line.iter().take_while(|byte| matches!(byte, b' ' | b'\t' | b'-')).count()
}

/// Returns whether a line can belong to the object with fields at `level`.
fn belongs(line: &[u8], level: usize) -> bool {
    let content = line.trim_ascii();
    content.is_empty()
        || self::level(line) >= level && content != b"---" && content != b"{" && content != b"}"
}
