//! A program's final lines in klog format: `F0102 03:04:05.678901`. They contain no literal to search for.

use memchr::memmem;

/// Length of level and day.
pub(crate) const LEN: usize = 5;

/// Returns the offsets of lines with level `F`, in text order.
pub(crate) fn fatal(text: &[u8]) -> Vec<usize> {
    // Months start with one of two digits, and capital letters before them are rare in logs.
    let mut places: Vec<usize> = [&b"F0"[..], b"F1"]
        .into_iter()
        .flat_map(|start| memmem::find_iter(text, start))
        .filter(|at| is_fatal(text, *at))
        .collect();
    places.sort_unstable();
    places
}

fn is_fatal(text: &[u8], at: usize) -> bool {
    let stands_alone = at == 0 || !text[at - 1].is_ascii_alphanumeric();
    let digits = |bytes: &[u8]| bytes.iter().all(u8::is_ascii_digit);
    stands_alone
        && text.get(at + 1..at + 9).is_some_and(|rest| {
            digits(&rest[..4]) && rest[4] == b' ' && digits(&rest[5..7]) && rest[7] == b':'
        })
}

/// Lines and bytes of a value that are searched backwards for its start. Lines of a longer value do not
/// count.
const MAX_VALUE_LINES: usize = 256;
const MAX_VALUE: usize = 32 * 1024;

/// Maximum length of a line's head.
const MAX_HEAD: usize = 160;

/// Returns whether a text line belongs to a multi-line klog value, with a tab before each line: from
/// `output=<` to ` >`. A container controls it.
pub(crate) fn is_in_value(chunk: &[u8], start: usize, line: &[u8]) -> bool {
    if !is_part(line) {
        return false;
    }
    let mut end = start;
    for _ in 0..MAX_VALUE_LINES {
        let Some(above) = end.checked_sub(1) else { return false };
        if start - above > MAX_VALUE {
            return true;
        }
        let from = memchr::memrchr(b'\n', &chunk[..above]).map_or(0, |at| at + 1);
        let line = &chunk[from..above];
        if line.trim_ascii_end().ends_with(b"=<") {
            return true;
        }
        if !is_part(line) {
            return false;
        }
        end = from;
    }
    true
}

/// Returns whether the text of a line starts with a tab, also after a head of the journal or syslog.
fn is_part(line: &[u8]) -> bool {
    const AFTER_HEAD: [&[u8]; 3] = [b"]: \t", b"]: #011", b"]:         "];
    let head = &line[..line.len().min(MAX_HEAD)];
    line.starts_with(b"\t")
        || line.starts_with(b"        ")
        || AFTER_HEAD.iter().any(|after| memmem::find(head, after).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_heads_of_fatal_lines_count() {
        let text = b"F0102 03:04:05.6 1 a.go:1] x\nn1 kubelet[7]: F1231 23:59:59.1 1 a.go:1] y\nstderr F F0102 03:04:05.6 z";
        assert_eq!(fatal(text), [0, 44, 82]);
        for text in ["F0102", "0F0102 03:04:05", "F010 203:04", "F0102 0304:05", "AF0102 03:04:05"] {
            assert_eq!(fatal(text.as_bytes()), Vec::<usize>::new(), "{text}");
        }
    }
}
