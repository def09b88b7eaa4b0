//! Multi-line messages around a recognized line: tracebacks, panics, lists of errors.
//!
//! A message at the end of a chunk loses its lines in the next one. Chunks are large, and the line itself is
//! kept.

use memchr::{memchr, memrchr};

use crate::line;

/// Lines kept before the recognized one: the head of a traceback and its last frames.
const MAX_BEFORE: usize = 8;

/// Lines kept after the recognized one.
const MAX_AFTER: usize = 8;

/// Maximum number of lines searched backwards for the head of a traceback; deeper stacks are truncated.
const MAX_WALK: usize = 60;

/// Bytes of a neighboring line that are inspected.
const MAX_LINE: usize = 512;

const TRACEBACK: &[u8] = b"Traceback (most recent call last)";

/// The neighbors of the line at `start..end` that belong to its message.
pub(crate) struct Message<'c> {
    pub(crate) before: Vec<&'c [u8]>,
    pub(crate) after: Vec<&'c [u8]>,
}

pub(crate) fn around(chunk: &[u8], start: usize, end: usize) -> Message<'_> {
    let line = &chunk[start..end.min(start + MAX_LINE)];
    let head = line::head(line);
    Message { before: before(chunk, start, head.message), after: after(chunk, end, &head) }
}

/// Returns the lines of a traceback whose last line was recognized.
fn before<'c>(chunk: &'c [u8], start: usize, message: &[u8]) -> Vec<&'c [u8]> {
    if indent(message) > 0 {
        return Vec::new();
    }
    let mut lines = Vec::new();
    for line in lines_before(chunk, start).take(MAX_WALK) {
        let text = line::head(line).message;
        if text.starts_with(TRACEBACK) {
            lines.truncate(MAX_BEFORE - 1);
            lines.push(line);
            lines.reverse();
            return lines;
        }
        if indent(text) == 0 {
            break;
        }
        lines.push(line);
    }
    Vec::new()
}

fn after<'c>(chunk: &'c [u8], end: usize, first: &line::Head<'_>) -> Vec<&'c [u8]> {
    let has = |text: &[u8]| memchr::memmem::find(first.message, text).is_some();
    let (panic, traceback) = (first.message.starts_with(b"panic: "), has(TRACEBACK));
    let mut lines = Vec::new();
    for line in lines_after(chunk, end).take(MAX_AFTER) {
        let head = line::head(line);
        let other = head.process.zip(first.process).is_some_and(|(other, own)| other != own);
        if head.begins || other {
            break;
        }
        let text = head.message;
        if indent(text) > indent(first.message) && !is_item(text)
            || text.starts_with(b", ")
            || (panic && (text.trim_ascii().is_empty() || is_stack(text)))
        {
            lines.push(line);
        } else {
            // The last line of a traceback names the error and has the indentation of the first.
            if traceback && !lines.is_empty() && !text.trim_ascii().is_empty() {
                lines.push(line);
            }
            break;
        }
    }
    while lines.last().is_some_and(|line| line.trim_ascii().is_empty()) {
        lines.pop();
    }
    lines
}

/// Returns whether a line is a kubeadm list item, which is a separate message.
fn is_item(text: &[u8]) -> bool {
    let text = text.trim_ascii_start();
    text.starts_with(b"[ERROR ") || text.starts_with(b"[WARNING ")
}

/// Returns whether a line belongs to the stack of a Go panic.
fn is_stack(text: &[u8]) -> bool {
    text.starts_with(b"goroutine ")
        || text.starts_with(b"\t")
        || text.starts_with(b"[signal ")
        || text.ends_with(b")")
}

fn indent(text: &[u8]) -> usize {
    text.iter()
        .take_while(|byte| byte.is_ascii_whitespace())
        .map(|byte| if *byte == b'\t' { 8 } else { 1 })
        .sum()
}

fn lines_after(chunk: &[u8], end: usize) -> impl Iterator<Item = &[u8]> {
    let mut at = end;
    std::iter::from_fn(move || {
        let start = at + 1;
        let rest = chunk.get(start..).filter(|rest| !rest.is_empty())?;
        let length = memchr(b'\n', rest).unwrap_or(rest.len());
        at = start + length;
        Some(cut(&rest[..length]))
    })
}

/// Returns the preceding lines, nearest first.
fn lines_before(chunk: &[u8], start: usize) -> impl Iterator<Item = &[u8]> {
    let mut at = start;
    std::iter::from_fn(move || {
        let end = at.checked_sub(1)?;
        // A longer line does not end a traceback; a limit keeps the search linear.
        let from = end.saturating_sub(MAX_LINE * 8);
        let begin = memrchr(b'\n', &chunk[from..end]).map_or(from, |found| from + found + 1);
        at = begin;
        Some(cut(&chunk[begin..end]))
    })
}

fn cut(line: &[u8]) -> &[u8] {
    let line = &line[..line.len().min(MAX_LINE)];
    line.strip_suffix(b"\r").unwrap_or(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the message around the line that contains `at`, as text.
    fn message<'t>(text: &'t str, at: &str) -> (Vec<&'t str>, Vec<&'t str>) {
        let place = text.find(at).unwrap();
        let start = text[..place].rfind('\n').map_or(0, |found| found + 1);
        let end = text[place..].find('\n').map_or(text.len(), |found| place + found);
        let message = around(text.as_bytes(), start, end);
        let shown =
            |lines: Vec<&'t [u8]>| lines.into_iter().map(|line| std::str::from_utf8(line).unwrap()).collect();
        (shown(message.before), shown(message.after))
    }

    #[test]
    fn a_traceback_is_one_message_from_either_end() {
        let text =
            "x\nTraceback (most recent call last):\n  File \"a\", line 1\n    b()\nRuntimeError: c\ny\n";
        let (before, after) = message(text, "RuntimeError");
        assert_eq!(before, ["Traceback (most recent call last):", "  File \"a\", line 1", "    b()"]);
        assert!(after.is_empty());
        let (before, after) = message(text, "Traceback");
        assert!(before.is_empty());
        assert_eq!(after, ["  File \"a\", line 1", "    b()", "RuntimeError: c"]);
    }

    #[test]
    fn the_journal_around_a_traceback_does_not_break_it() {
        let head = "Jan 02 03:04:05 n1 cloud-init[9]: ";
        let text = format!(
            "{head}Traceback (most recent call last):\n{head}  File \"a\", line 1\n{head}ValueError: c\n"
        );
        assert_eq!(message(&text, "ValueError").0.len(), 2);
    }

    #[test]
    fn a_panic_keeps_its_stack_and_nothing_more() {
        let text = "panic: boom\n\ngoroutine 1 [running]:\nmain.main()\n\t/src/main.go:5 +0x1d\nnext\n";
        let after = message(text, "panic").1;
        assert_eq!(after, ["", "goroutine 1 [running]:", "main.main()", "\t/src/main.go:5 +0x1d"]);
    }

    #[test]
    fn indented_lines_belong_to_the_line_above_but_items_stand_alone() {
        let yaml = "error: yaml: unmarshal errors:\n  line 3: field x not found\nnext\n";
        assert_eq!(message(yaml, "error").1, ["  line 3: field x not found"]);
        let list = "\t[ERROR CRI]: not running: output\n, error: exit status 1\n\t[ERROR Swap]: swap\n";
        assert_eq!(message(list, "[ERROR CRI]").1, [", error: exit status 1"]);
        let klog = "E0102 03:04:05.0 1 a.go:1] x\nE0102 03:04:05.0 1 a.go:1] y\n";
        assert!(message(klog, "] x").1.is_empty());
    }
}
