//! Private keys without their first line: the log starts inside the key, or the first line is in another
//! file.

use memchr::memmem;

use crate::decode;
use crate::scan::line_around;

/// Start of the last PEM line.
const END: &[u8] = b"-----END ";

/// Returns whether a text ends with the start of the last line of PEM.
pub(crate) fn is_here(text: &[u8]) -> bool {
    memmem::find(text, END).is_some()
}

/// Returns the range of the body above the last PEM line, in which the label of a private key starts at
/// `label`.
pub(crate) fn body(text: &[u8], line: (usize, usize), label: usize) -> Option<(usize, usize)> {
    if !is_here(&text[line.0..label]) {
        return None;
    }
    let mut start = line.0;
    while start > 0 {
        let above = line_around(text, start - 1);
        let content = &text[above.0..above.1];
        let is_last = start == line.0 && decode::is_last_line(content);
        if is_last || decode::is_wrapped_line(content) {
            start = above.0;
            continue;
        }
        // The first line may have a prefix before the body.
        let len = decode::wrapped_end(content);
        start = if len > 0 { above.1 - len } else { start };
        break;
    }
    let end = text[..line.0].trim_ascii_end().len();
    (start < end).then_some((start, end))
}
