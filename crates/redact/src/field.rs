//! A field: a name that identifies its value as a secret, in any notation of evidence.

use crate::frame;
use crate::rules::{self, Field, NameMatch, Place};

/// Location of a field's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Inline {
        start: usize,
        end: usize,
    },
    /// A YAML block scalar: the following lines indented deeper than the field.
    Block {
        start: usize,
        indent: usize,
    },
}

/// Endings of upper-case names that describe a secret (its location, size or age) without containing it.
const ABOUT_SECRETS: [&[u8]; 12] = [
    b"_FILE", b"_PATH", b"_DIR", b"_URL", b"_TTL", b"_ID", b"_NAME", b"_SIZE", b"_LEN", b"_COUNT", b"_TYPE",
    b"_HASH",
];

/// Names with a field's ending, in lower case without hyphens and underscores, whose values are public.
const PUBLIC_NAMES: [&[u8]; 1] = [b"initialclustertoken"];

/// The indent before a field in a list or an object.
const INDENT: &[u8] = b"  ";

/// Start of messages of `passwd`.
const MESSAGE: &[u8] = b"password ";

/// Maximum length of a call's name around a value.
const WRAPPER_MAX: usize = 24;

/// Byte order marks of UTF-8 and UTF-16 at the start of a file.
const BYTE_ORDER_MARKS: [&[u8]; 3] = ["\u{feff}".as_bytes(), b"\xff\xfe", b"\xfe\xff"];

/// Placeholders for a missing secret.
const NOT_A_VALUE: [&[u8]; 17] = [
    b"null",
    b"nil",
    b"none",
    b"true",
    b"false",
    b"~",
    b"<nil>",
    b"<none>",
    b"redacted",
    b"[redacted]",
    b"<redacted>",
    b"hidden",
    b"masked",
    b"unset",
    b"empty",
    b"required",
    b"YES)",
];

/// Programs whose names have a field's ending: the text after the colon is a message.
const PROGRAMS: [&[u8]; 4] = [b"chpasswd", b"gpasswd", b"htpasswd", b"smbpasswd"];

/// Top-level directories of absolute paths: a path names the location of a secret and is evidence.
const FOLDERS: [&[u8]; 13] = [
    b"/etc/", b"/var/", b"/run/", b"/home/", b"/root", b"/opt/", b"/usr/", b"/tmp/", b"/proc/", b"/mnt/",
    b"/srv/", b"/dev/", b"/host",
];

/// Finds the value of `field` with its name at `name`; `line` is the range of its line.
pub(crate) fn value(text: &[u8], line: (usize, usize), name: (usize, usize), field: &Field) -> Option<Value> {
    let name = whole_name(text, line, name, field.matches)?;
    let before = &text[line.0..name.start];
    let before = BYTE_ORDER_MARKS.iter().find_map(|mark| before.strip_prefix(*mark)).unwrap_or(before);
    if is_public(before, &text[name.start..name.end])
        || is_name_of_cluster(before, &text[name.start..name.end], &text[name.end..line.1])
    {
        return None;
    }
    // The kind inside a marker is not a field.
    if before.ends_with(b"***<") {
        return None;
    }
    let mut at = name.end;
    let key_quote = quote(text, at, line.1);
    if let Some(quote) = &key_quote {
        at = quote.end;
    }
    let gap = blank(text, at, line.1);
    let starts_line = key_quote.is_none() && is_yaml_lead(before);
    let starts_text =
        key_quote.is_none() && (is_yaml_lead(behind_enclosing(before)) || before.ends_with(INDENT));
    let separator = text.get(at + gap).copied().filter(|_| at + gap < line.1);
    at += gap;
    match separator {
        Some(b':' | b'=') => at += 1,
        Some(b'>') if before.ends_with(b"<") => return in_tags(text, at + 1, line.1, field),
        None | Some(b',' | b'\\')
            if name.is_flag && matches!(text[at..line.1].trim_ascii(), b"" | b"," | b"\\") =>
        {
            return below(text, line, &name, at, field);
        }
        Some(_) if name.is_flag && gap > 0 => {}
        _ => return None,
    }
    let is_field = key_quote.is_some() || separator == Some(b'=') || name.is_flag || starts_text;
    if field.place == Place::Field && !is_field {
        return None;
    }
    at += blank(text, at, line.1);
    if separator == Some(b':') {
        at += properties(&text[at..line.1]);
    }
    at += wrapper(&text[at..line.1]);
    let rest = text[at..line.1].trim_ascii_end();
    if key_quote.is_none() && separator == Some(b':') && is_block_indicator(rest) {
        let indent = if starts_text { behind_enclosing(before).len() } else { 0 };
        return Some(Value::Block { start: at, indent });
    }
    let (start, end) = if let Some(open) = quote(text, at, line.1) {
        (open.end, closing_quote(text, &open, line.1))
    } else if starts_line && separator == Some(b':') {
        (at, at + rest.len())
    } else if let Some(&enclosing @ (b'"' | b'\'')) = before.last().filter(|_| key_quote.is_none()) {
        (at, at + memchr::memchr(enclosing, rest).unwrap_or(rest.len()))
    } else {
        let is_listed = separator == Some(b'=') && matches!(before.last(), Some(b',' | b';' | b'&' | b'{'));
        let stop = |at: usize, byte: u8| match byte {
            b',' => is_listed || ends_at_comma(&rest[at + 1..]),
            _ => byte.is_ascii_whitespace() || matches!(byte, b'"' | b'\'' | b';'),
        };
        let mut len = rest.iter().enumerate().position(|(at, byte)| stop(at, *byte)).unwrap_or(rest.len());
        // Backslashes before a quote belong to the quote.
        if matches!(rest.get(len), Some(b'"' | b'\'')) {
            len -= rest[..len].iter().rev().take_while(|byte| **byte == b'\\').count();
        }
        (at, at + len)
    };
    accept(text, start, end, field)
}

/// Finds the value of a flag on the next line: in a YAML or JSON list, or after a line-continuation
/// backslash. `at` is the offset after the name.
fn below(text: &[u8], line: (usize, usize), name: &Name, at: usize, field: &Field) -> Option<Value> {
    let lead = &text[line.0..name.start];
    let lead =
        lead.iter().rposition(|byte| !b"-\"'\\".contains(byte)).map_or(&b""[..], |last| &lead[..=last]);
    let is_item = lead.iter().all(|byte| matches!(byte, b' ' | b'\t' | b'-'));
    let start = (line.1 + 1).min(text.len());
    let end = memchr::memchr(b'\n', &text[start..]).map_or(text.len(), |len| start + len);
    let mut at_value = start + blank(text, start, end);
    if frame::begins_record(&text[start..end]) {
        return None;
    }
    match text[at..line.1].trim_ascii() {
        b"\\" => {}
        b"," if is_item && quote(text, at_value, end).is_some() => {}
        b"" if is_item && text[at_value..end].starts_with(b"- ") => at_value += 2,
        _ => return None,
    }
    if let Some(open) = quote(text, at_value, end) {
        return accept(text, open.end, closing_quote(text, &open, end), field);
    }
    let word = &text[at_value..end];
    let len = word.iter().position(u8::is_ascii_whitespace).unwrap_or(word.len());
    if word.starts_with(b"-") { None } else { accept(text, at_value, at_value + len, field) }
}

#[derive(Debug)]
struct Name {
    start: usize,
    end: usize,
    is_flag: bool,
}

fn whole_name(
    text: &[u8],
    line: (usize, usize),
    (start, end): (usize, usize),
    matches: NameMatch,
) -> Option<Name> {
    let before = &text[line.0..start];
    let after = text.get(end).filter(|_| end < line.1);
    let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    match matches {
        NameMatch::Whole | NameMatch::Suffix if after.is_some_and(is_word) => None,
        NameMatch::Whole => {
            let dashes = before.iter().rev().take_while(|byte| **byte == b'-').count();
            let left = before[..before.len() - dashes].last();
            // The letter of an escape such as `\n` is not part of a word.
            let is_escape = matches!(before, [.., b'\\', b'n' | b'r' | b't']);
            if !is_escape && left.is_some_and(|byte| is_word(byte) || *byte == b'.') {
                return None;
            }
            Some(Name { start, end, is_flag: dashes > 0 })
        }
        NameMatch::Suffix => {
            let more =
                before.iter().rev().take_while(|byte| is_word(byte) || matches!(byte, b'-' | b'.')).count();
            let start = start - more;
            if after == Some(&b':') && PROGRAMS.contains(&&text[start..end]) {
                return None;
            }
            Some(Name { start, end, is_flag: text[start] == b'-' })
        }
        NameMatch::Upper => {
            let is_upper = |byte: &u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || *byte == b'_';
            if !text[start..end].iter().all(is_upper) {
                return None;
            }
            let start = start - before.iter().rev().take_while(|byte| is_upper(byte)).count();
            let end = end + text[end..line.1].iter().take_while(|byte| is_upper(byte)).count();
            let name = &text[start..end];
            // `NAME=value` only: in prose and YAML, capitals have no meaning.
            let is_assignment = text.get(end) == Some(&b'=') && end < line.1;
            let is_about =
                name.ends_with(b"PWD") && name.len() <= 6 || ABOUT_SECRETS.iter().any(|s| name.ends_with(s));
            (is_assignment && !is_about).then_some(Name { start, end, is_flag: false })
        }
    }
}

#[derive(Debug)]
struct Quote {
    mark: u8,
    /// Number of backslashes before it: the depth of escaping.
    depth: usize,
    end: usize,
}

fn quote(text: &[u8], at: usize, line_end: usize) -> Option<Quote> {
    let depth = text[at..line_end].iter().take_while(|byte| **byte == b'\\').count();
    let mark = *text.get(at + depth).filter(|_| at + depth < line_end)?;
    matches!(mark, b'"' | b'\'').then_some(Quote { mark, depth, end: at + depth + 1 })
}

/// Returns whether the value is public although the name ends like a secret's: a cluster token, or the
/// checksum of a Secret.
fn is_public(before: &[u8], name: &[u8]) -> bool {
    let letters =
        || name.iter().rev().filter(|byte| !matches!(byte, b'-' | b'_')).map(u8::to_ascii_lowercase);
    let is_end = |public: &&[u8]| letters().take(public.len()).eq(public.iter().rev().copied());
    before.ends_with(b"checksum/") || PUBLIC_NAMES.iter().any(is_end)
}

/// Returns whether the value of a cluster token is the cluster's name, as in etcd.
fn is_name_of_cluster(before: &[u8], name: &[u8], behind: &[u8]) -> bool {
    const CLUSTER: &[u8] = b"cluster";
    let last = before.len().saturating_sub(CLUSTER.len() + 1);
    let is_of_cluster = [&before[last..], name]
        .iter()
        .any(|text| text.windows(CLUSTER.len()).any(|word| word.eq_ignore_ascii_case(CLUSTER)));
    let is_separator = |byte: &u8| matches!(byte, b' ' | b'\t' | b':' | b'=' | b'"' | b'\'' | b'\\');
    let start = behind.iter().take_while(|byte| is_separator(byte)).count();
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.".contains(byte);
    let value = &behind[start..];
    let value = &value[..value.iter().take_while(|byte| is_part(byte)).count()];
    is_of_cluster
        && value.iter().any(|byte| b"-_.".contains(byte))
        && value.split(|byte| b"-_.".contains(byte)).all(is_word_of_a_name)
}

/// Letters followed by a number, a number, or an abbreviation such as `k8s`.
fn is_word_of_a_name(part: &[u8]) -> bool {
    const NUMBER_MAX: usize = 4;
    const SHORT: usize = 3;
    let letters = part.iter().take_while(|byte| byte.is_ascii_lowercase()).count();
    let number = &part[letters..];
    part.len() <= SHORT || number.len() <= NUMBER_MAX && number.iter().all(u8::is_ascii_digit)
}

/// Returns the end of the quoted text; the end of the line if there is no closing quote.
fn closing_quote(text: &[u8], open: &Quote, line_end: usize) -> usize {
    let mut backslashes = 0;
    for (i, &byte) in text[open.end..line_end].iter().enumerate() {
        if byte == open.mark {
            let closes = match (open.mark, open.depth) {
                (b'\'', 0) => true,
                (_, 0) => backslashes % 2 == 0,
                (_, depth) => backslashes <= depth,
            };
            if closes {
                return open.end + i - backslashes.min(open.depth);
            }
        }
        backslashes = if byte == b'\\' { backslashes + 1 } else { 0 };
    }
    line_end
}

/// Finds the text between XML tags, inside any number of opening tags.
fn in_tags(text: &[u8], mut at: usize, line_end: usize, field: &Field) -> Option<Value> {
    while text[at..line_end].starts_with(b"<") && !text[at..line_end].starts_with(b"</") {
        at += memchr::memchr(b'>', &text[at..line_end])? + 1;
    }
    let len = memchr::memchr(b'<', &text[at..line_end]).unwrap_or(line_end - at);
    // A placeholder such as `<PASSWORD>` is not an opening tag. The line after it may be another message.
    let is_closed = text[at + len..line_end].starts_with(b"</");
    let is_cut = at + len == line_end && !text[at..line_end].trim_ascii().contains(&b' ');
    if !is_closed && !is_cut {
        return None;
    }
    accept(text, at, at + len, field)
}

fn accept(text: &[u8], start: usize, end: usize, field: &Field) -> Option<Value> {
    let value = &text[start..end];
    let value = match &field.value {
        Some(regex) => regex.get().captures(value)?.name("value")?.as_bytes(),
        None => value,
    };
    let fits = value.len() >= field.min && (!field.mixed || rules::is_mixed(value));
    (fits && !is_harmless(value)).then_some(Value::Inline { start, end: start + value.len() })
}

fn is_harmless(value: &[u8]) -> bool {
    let is_variable = match value {
        [b'$', b'{' | b'(', ..] | [b'{', b'{', ..] => true,
        [b'$', name @ ..] => name.iter().all(|byte| byte.is_ascii_uppercase() || *byte == b'_'),
        _ => false,
    };
    // Already redacted, by us or by the program that wrote the log.
    let is_masked = value.ends_with(b">***") && memchr::memmem::find(value, b"***<").is_some()
        || value.iter().all(|byte| matches!(byte, b'*' | b'x' | b'X' | b'.'));
    let is_structure = matches!(value, [b'{' | b'[', ..])
        && !matches!(value.last(), Some(b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9'));
    is_variable
        || is_masked
        || is_structure
        || NOT_A_VALUE.iter().any(|word| value.eq_ignore_ascii_case(word))
        || value.starts_with(MESSAGE)
        || FOLDERS.iter().any(|folder| value.starts_with(folder)) && !value.contains(&b'=')
}

fn blank(text: &[u8], at: usize, line_end: usize) -> usize {
    text[at..line_end].iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count()
}

/// Returns the length of the tag and the anchor before a YAML value: `!!str ` and `&name `.
fn properties(rest: &[u8]) -> usize {
    let mut len = 0;
    while let [b'!' | b'&', more @ ..] = &rest[len..] {
        let word =
            more.iter().take_while(|byte| byte.is_ascii_alphanumeric() || b"!_-".contains(byte)).count();
        let gap = more[word..].iter().take_while(|byte| **byte == b' ').count();
        if gap == 0 {
            break;
        }
        len += 1 + word + gap;
    }
    len
}

/// Returns the length of a call around a quoted value, as in `Some("…")`, and of the dollar sign before a
/// shell string.
fn wrapper(rest: &[u8]) -> usize {
    let name = rest.iter().take_while(|byte| byte.is_ascii_alphanumeric() || **byte == b'_').count();
    let is_quote = |at: usize| {
        let depth = rest[at..].iter().take_while(|byte| **byte == b'\\').count();
        matches!(rest.get(at + depth), Some(b'"' | b'\''))
    };
    match rest.get(name) {
        Some(b'(') if (1..=WRAPPER_MAX).contains(&name) && is_quote(name + 1) => name + 1,
        Some(b'$') if name == 0 && is_quote(1) => 1,
        _ => 0,
    }
}

/// Returns whether a value stops before a comma, because another field or nothing follows.
fn ends_at_comma(rest: &[u8]) -> bool {
    let len = rest.iter().take_while(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(byte)).count();
    len == 0 || matches!(rest.get(len), Some(b':' | b'='))
}

/// Returns whether only indentation and list dashes precede a YAML field.
fn is_yaml_lead(before: &[u8]) -> bool {
    before.iter().all(|byte| matches!(byte, b' ' | b'\t' | b'-')) && !before.ends_with(b"-")
}

/// Returns the text before a field without enclosing syntax: quotes, tags, or the name of an outer field.
fn behind_enclosing(before: &[u8]) -> &[u8] {
    let is_enclosing = |byte: &u8| matches!(byte, b'"' | b'\'' | b'`' | b'>' | b'=' | b'[');
    &before[before.iter().rposition(is_enclosing).map_or(0, |at| at + 1)..]
}

/// Returns whether a name is the last part of a flag that ends a string: its value may be in the next string.
pub(crate) fn is_listed_flag(text: &[u8], line: (usize, usize), (start, end): (usize, usize)) -> bool {
    let word =
        text[line.0..start].iter().rev().take_while(|byte| byte.is_ascii_alphanumeric() || **byte == b'-');
    quote(text, end, line.1).is_some() && word.last() == Some(&b'-')
}

/// Returns whether the text after a name may be a block scalar indicator.
pub(crate) fn may_open_block(rest: &[u8]) -> bool {
    let rest = rest.trim_ascii().strip_prefix(b":").unwrap_or_default().trim_ascii_start();
    let len = rest.iter().position(|byte| matches!(byte, b'"' | b'\'' | b'\\')).unwrap_or(rest.len());
    is_block_indicator(&rest[..len])
}

fn is_block_indicator(rest: &[u8]) -> bool {
    let rest = rest.strip_prefix(b"!!binary ").unwrap_or(rest);
    matches!(rest, [b'|' | b'>', more @ ..] if more.iter().all(|byte| matches!(byte, b'-' | b'+' | b'0'..=b'9')))
}
