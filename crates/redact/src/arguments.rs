//! Rewrites the argument vectors of a line in shell notation, so that one set of flag rules covers all
//! notations.

use memchr::{memchr, memmem};

use crate::mapped::Mapped;

/// Rewrites the argument vectors of a line: `['curl', '-u']` of Python, `["curl","-u"]` of JSON, `["curl" "-u"]` of Go, `[curl, -u]`
/// of YAML and Java, `a0="curl" a1=2D75` of audit records. Quotes stay around arguments that contain white space.
pub(crate) fn arguments(original: &[u8]) -> Option<Mapped> {
    if let Some(first) = memmem::find(original, b" a0=") {
        return of_audit(original, first);
    }
    quoted(original).or_else(|| of_flow(original))
}

/// Rewrites vectors of quoted arguments.
fn quoted(original: &[u8]) -> Option<Mapped> {
    let mut mapped = Mapped::with_capacity(original.len());
    let (mut copied, mut at, mut elements) = (0, 0, 0);
    while let Some(len) = original[at..].iter().position(|byte| matches!(byte, b'"' | b'\'')) {
        let mark = at + len;
        let depth = original[at..mark].iter().rev().take_while(|byte| **byte == b'\\').count();
        let open = mark - depth;
        let previous = at;
        at = mark + 1;
        if !begins_argument(&original[previous..open], &original[..open]) {
            continue;
        }
        let closing = [&vec![b'\\'; depth][..], &[original[mark]]].concat();
        let Some(len) = memmem::find(&original[at..], &closing) else { break };
        let close = at + len;
        // A quoted text that contains a vector is not an argument.
        let inside = &original[at..close];
        let is_opened = inside.iter().rev().find(|byte| **byte != b'\\') == Some(&b'[');
        if is_opened || memmem::find(inside, b"['").is_some() {
            continue;
        }
        let is_word = !original[at..close].iter().any(u8::is_ascii_whitespace);
        mapped.keep(original, copied, open);
        copied = if is_word { at } else { open };
        at = close + closing.len();
        if is_word {
            mapped.keep(original, copied, close);
            copied = at;
        }
        if original.get(at) == Some(&b',') {
            mapped.keep(original, copied, at);
            at += 1;
            copied = at;
            if original.get(at) != Some(&b' ') {
                mapped.put(b' ', at - 1, 1);
            }
        }
        elements += 1;
    }
    mapped.keep(original, copied, original.len());
    (elements > 1).then_some(mapped)
}

/// Returns whether the quote after `before` opens an argument. `gap` is the text since the last quote.
fn begins_argument(gap: &[u8], before: &[u8]) -> bool {
    match before.trim_ascii_end() {
        [.., b'[' | b'(' | b','] => true,
        // `[]string{"curl"}` of Go, not an object of JSON.
        [before @ .., b'{'] => before.ends_with(b"]string"),
        // Go and Rust write a space between arguments.
        [.., b'"' | b'\''] => !gap.is_empty() && gap.iter().all(u8::is_ascii_whitespace),
        _ => false,
    }
}

/// Rewrites vectors of words separated by commas.
fn of_flow(original: &[u8]) -> Option<Mapped> {
    let mut mapped = Mapped::with_capacity(original.len());
    let (mut copied, mut elements) = (0, 0);
    let mut at = 0;
    while let Some(open) = memchr(b'[', &original[at..]).map(|len| at + len) {
        let end = memchr(b']', &original[open..]).map_or(original.len(), |len| open + len);
        for comma in memchr::memchr_iter(b',', &original[open..end]).map(|len| open + len) {
            if original.get(comma + 1) == Some(&b' ') {
                mapped.keep(original, copied, comma);
                copied = comma + 1;
                elements += 1;
            }
        }
        at = end.max(open + 1);
    }
    mapped.keep(original, copied, original.len());
    (elements > 0).then_some(mapped)
}

/// Rewrites the numbered arguments of an audit record; `first` is the offset of the first one.
///
/// The kernel writes arguments with spaces or quotes in hexadecimal, and splits long arguments.
fn of_audit(original: &[u8], first: usize) -> Option<Mapped> {
    let mut mapped = Mapped::with_capacity(original.len());
    mapped.keep(original, 0, first);
    let (mut at, mut elements) = (first, 0);
    while let Some((name, is_part)) = name_of_argument(&original[at..]) {
        if !is_part {
            mapped.keep(original, at, at + 1);
        }
        let start = at + name;
        let depth = original[start..].iter().take_while(|byte| **byte == b'\\').count();
        let value = start + depth;
        let is_end = |byte: &u8| matches!(byte, b' ' | b'\n' | b'"' | b'\\');
        if original.get(value) == Some(&b'"') {
            let len = original[value + 1..].iter().position(|byte| matches!(byte, b'"' | b'\n' | b'\\'));
            let end = len.map_or(original.len(), |len| value + 1 + len);
            mapped.keep(original, value + 1, end);
            let closing = original[end..].iter().take_while(|byte| matches!(byte, b'"' | b'\\')).count();
            at = end + closing;
        } else {
            let len = original[value..].iter().position(is_end);
            let end = len.map_or(original.len(), |len| value + len);
            match hexadecimal(&original[value..end]) {
                Some(decoded) => {
                    let places = decoded.into_iter().enumerate();
                    places.for_each(|(number, byte)| mapped.put(byte, value + 2 * number, 2));
                }
                None => mapped.keep(original, value, end),
            }
            at = end;
        }
        elements += 1;
    }
    mapped.keep(original, at, original.len());
    (elements > 1).then_some(mapped)
}

/// Returns the length of ` a12=` or ` a12[3]=` at the start of a text, and whether the argument continues the
/// previous one.
fn name_of_argument(text: &[u8]) -> Option<(usize, bool)> {
    let digits = |text: &[u8]| text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let named = text.strip_prefix(b" a")?;
    let number = digits(named);
    let behind = named.get(number..).filter(|_| number > 0)?;
    if behind.starts_with(b"=") {
        return Some((number + 3, false));
    }
    if let Some(len) = behind.strip_prefix(b"_len=") {
        // The length of a split argument precedes its parts.
        let skipped = number + 7 + digits(len);
        let (rest, is_part) = name_of_argument(text.get(skipped..)?)?;
        return Some((skipped + rest, is_part));
    }
    let part = behind.strip_prefix(b"[")?;
    let len = digits(part);
    part.get(len..)?.starts_with(b"]=").then_some((number + len + 5, part.first() != Some(&b'0')))
}

fn hexadecimal(text: &[u8]) -> Option<Vec<u8>> {
    hex::decode(text).ok().filter(|decoded| !decoded.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn argument_vectors_are_written_as_a_shell_shows_them() {
        for (vector, shown) in [
            ("['curl', '-u', 'a:b']", "[curl -u a:b]"),
            (r#"{"args":["curl","-H","A: b","x"]}"#, r#"{"args":[curl -H "A: b" x]}"#),
            (r#"args=[\"curl\", \"-u\"]"#, "args=[curl -u]"),
            (r#"args: ["curl" "-u" "a:b"]"#, "args: [curl -u a:b]"),
            (r#"[]string{"curl", "-u", "a:b"}"#, "[]string{curl -u a:b}"),
            ("- [ curl, -u, a:b ]", "- [ curl -u a:b ]"),
            (r#"EXECVE argc=2 a0="curl" a1="-u" key="x""#, r#"EXECVE argc=2 curl -u key="x""#),
            (r#"EXECVE argc=3 a0="sh" a1=2D63 a2=2D75206220"#, "EXECVE argc=3 sh -c -u b "),
            (r#"EXECVE argc=2 a0="x" a1_len=4 a1[0]="-" a1[1]="u b""#, "EXECVE argc=2 x -u b"),
        ] {
            let mapped = arguments(vector.as_bytes()).unwrap();
            assert_eq!(String::from_utf8_lossy(&mapped.text), shown, "{vector}");
        }
        for text in ["it's", "say \"x\"", "", "f('x')", "\"a\" and \"b\""] {
            assert!(arguments(text.as_bytes()).is_none(), "{text}");
        }
    }

    #[test]
    fn arguments_are_found_again_in_the_vector() {
        for vector in ["['curl', '-u', 'a:b']", r#"["curl","-u"]"#, "[curl, -u, x]", r#" a0="curl" a1="-u""#]
        {
            let mapped = arguments(vector.as_bytes()).unwrap();
            let flag = memmem::find(&mapped.text, b"-u").map(|at| mapped.range(at, at + 2));
            assert_eq!(flag, memmem::find(vector.as_bytes(), b"-u").map(|at| (at, at + 2)), "{vector}");
        }
        let record = b" a0=\"x\" a1=2D75";
        let mapped = arguments(record).unwrap();
        let flag = memmem::find(&mapped.text, b"-u").map(|at| mapped.range(at, at + 2));
        assert_eq!(flag, Some((11, 15)));
    }
}
