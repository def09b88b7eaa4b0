//! Frames that log drivers, loggers and readers add to each line of a text: times, names, line numbers, JSON
//! members, and quotes of a list. A multi-line text can be parsed only without its frame.

use std::sync::LazyLock;

use memchr::{memchr, memmem};
use regex::bytes::Regex;

use crate::mapped::Mapped;
use crate::resolved::View;
use crate::views;

/// A prefix added by readers and loggers, with at most [`PREFIXES_MAX`] in sequence. The expression matches a
/// single one, because repeated bounds take megabytes.
const PREFIX: &str = concat!(
    r"^(?:",
    // Syslog and ISO 8601 times, optionally with host and program.
    r"(?:[A-Z][a-z]{2} [ 0-9][0-9] [0-9:]{8}(?:\.[0-9]+)?",
    r"|(?:[A-Z][a-z]{2} )?[0-9]{4}[-/][0-9]{2}[-/][0-9]{2}[T ][0-9:]{8}(?:[.,][0-9]+)?",
    r"(?:Z|[+-][0-9]{2}:?[0-9]{2}| [A-Z]{3,4})?) +",
    r#"(?:(?:[^\s:"'{}=]{1,128} )?[^\s:\[\]"'{}=]{1,128}(?:\[[0-9]+\])?: )?"#,
    // klog.
    r"|[IWEF][0-9]{4} [0-9:]{8}\.[0-9]{6} +[0-9]+ [^\]\s]{1,128}\] ",
    // The kernel, kubectl, kubeadm.
    r"|[0-9]{1,3},[0-9]{1,20},[0-9]{1,20},[^;\s]{1,32};",
    r#"|\[[^\]\["']{1,128}\] "#,
    // Syslog headers around a time and a host, and a program with its process ID.
    r"|<[0-9]{1,3}>(?:1 )?|[^\s:]{1,128} [^\s:]{1,128} [0-9-]{1,10} - - ",
    r#"|(?:[^\s:"'{}=]{1,128} )?[^\s:\[\]"'{}=]{1,128}\[[0-9]+\]: "#,
    // Line numbers, optionally with the file name.
    r#"|[^\s:"'{}=]{1,256}:[0-9]{1,7}:|[ \t]*[0-9]{1,7}(?:[:|]|[ ]?\t|[ ]{2}|[ ]\|[ ])[ ]?"#,
    // Compose, Ansible, a shell's trace, quotations, comments.
    r#"|[^\s|"'{}]{1,128} *\| "#,
    r"|[>|+] ?|\+{2,4} |(?:#|//) ",
    // Container runtimes, cloud-init, programs.
    r"|std(?:out|err) [FP] ",
    r"|- [a-z_]+\.py\[[A-Z]+\]: ",
    r"|(?:TRACE|DEBUG|INFO|WARN|WARNING|ERROR|FATAL):? +(?:\[[^\]\s]{1,64}\] [^\s:]{1,128} - )?",
    r")",
);

/// Maximum number of prefixes per line.
const PREFIXES_MAX: usize = 6;

/// The names of the text field in the lines of log drivers and structured loggers.
const MEMBERS: [&[u8]; 11] = [
    DOCKER,
    b"\"log\": \"",
    b"\"line\":\"",
    b"\"short_message\":\"",
    b"\"message\":\"",
    b"\"message\": \"",
    b"\"MESSAGE\":\"",
    b"\"MESSAGE\" : \"",
    b"\"msg\":\"",
    b"\"msg\": \"",
    b" msg=\"",
];

/// Finds the name of any member in one pass.
static MEMBER: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let names = MEMBERS.map(|name| name.iter().map(|byte| format!("\\x{byte:02x}")).collect::<String>());
    regex::bytes::RegexBuilder::new(&names.join("|")).unicode(false).build().ok()
});

/// Docker's driver includes the text's line ends and splits long lines.
const DOCKER: &[u8] = b"\"log\":\"";

/// The streams of a container, as Docker's driver and other container runtimes write them.
const STREAMS: [(&[u8], &[u8]); 2] =
    [(b"\"stream\":\"stdout\"", b" stdout "), (b"\"stream\":\"stderr\"", b" stderr ")];

/// Maximum offset of a container's stream in its line.
const STREAM_WITHIN: usize = 64;

/// Minimum number of digits in a time.
const DIGITS_OF_TIME: usize = 6;

/// Shorter common prefixes of two lines are part of their text.
const SHARED_MIN: usize = 4;

/// Starts of log records. `0` stands for a digit, `A` and `a` for letters, `_` for a digit or a space.
const HEADS: [&[u8]; 8] = [
    b"A0000 00:00:00.000000 ",
    b"Aaa _0 00:00:00",
    b"0000-00-00T00:00:00",
    b"0000-00-00 00:00:00",
    b"0000/00/00 00:00:00",
    b"[0000-00-00",
    b"time=\"0000-00-00",
    b"time=0000-00-00",
];

/// Starts of the records of structured loggers.
const OBJECTS: [&[u8]; 5] = [b"{\"level\":", b"{\"ts\":", b"{\"time\":", b"{\"severity\":", b"{\"msg\":"];

/// The common frame around the lines of one text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    /// A common prefix, except for digits and for the width of gaps.
    Prefix(Vec<u8>),
    /// The text is a member of a JSON object or the value of a field.
    Member(&'static [u8]),
    /// The text is one stream of a container, an index into [`STREAMS`]. Both streams are in one log, and
    /// each splits its lines.
    Docker(usize),
    Container(usize),
    /// The text is a quoted list element: the characters before its quote, and the quote.
    Element(Vec<u8>),
    /// Not a frame, but a notation of all lines.
    Written(View),
}

/// Matcher for line prefixes.
#[derive(Clone)]
pub(crate) struct Prefixes(Regex);

/// The frames of a line, read once for all constructs that start in it.
pub(crate) struct LineFrames {
    /// Offset of the line.
    pub(crate) start: usize,
    strings: Option<Strings>,
    prefix: Option<usize>,
    /// Maximum length of the prefix that this line and the next have in common.
    shared_max: Option<usize>,
    /// The frames at the places that were asked for, and whether the next line has them, too.
    known: Vec<(Place, Frame, bool)>,
}

/// The strings of a line that may be frames.
struct Strings {
    /// The members that hold text, in the order of [`MEMBERS`].
    members: Vec<Member>,
    /// Offset of the quote of a list element.
    element: Option<usize>,
}

/// The string of a member.
struct Member {
    name: &'static [u8],
    start: usize,
    end: usize,
}

/// The part of a line with the start of a construct.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// In the member with this number.
    Member(usize),
    Element,
    BehindPrefix,
    Elsewhere,
}

/// Returns whether a line ends with a one-word YAML list item or array string, optionally after a frame.
pub(crate) fn ends_with_item(line: &[u8]) -> bool {
    let line = line.trim_ascii_end();
    let last = line.iter().rposition(|byte| matches!(byte, b' ' | b'\t')).map_or(0, |blank| blank + 1);
    let (before, word) = line.split_at(last);
    let string = word.strip_suffix(b",").unwrap_or(word);
    before.ends_with(b"- ") || string.len() > 2 && string.starts_with(b"\"") && string.ends_with(b"\"")
}

/// Returns whether a text begins with the head of a log record, so that it does not continue another text.
pub(crate) fn begins_record(text: &[u8]) -> bool {
    let is_like = |(byte, shape): (&u8, &u8)| match shape {
        b'0' => byte.is_ascii_digit(),
        b'A' => byte.is_ascii_uppercase(),
        b'a' => byte.is_ascii_lowercase(),
        b'_' => byte.is_ascii_digit() || *byte == b' ',
        _ => byte == shape,
    };
    let is_head = |head: &&[u8]| text.len() >= head.len() && text.iter().zip(*head).all(is_like);
    HEADS.iter().any(is_head) || OBJECTS.iter().any(|object| text.starts_with(object)) || is_of_kernel(text)
}

/// Returns whether a text begins with the kernel's time, as in `[   12.345678] `.
fn is_of_kernel(text: &[u8]) -> bool {
    let Some(time) = text.strip_prefix(b"[") else { return false };
    let digits = |text: &[u8]| text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let time = time.trim_ascii_start();
    let seconds = digits(time);
    let fraction = time[seconds..].strip_prefix(b".").unwrap_or_default();
    seconds > 0 && digits(fraction) == DIGITS_OF_TIME && fraction[DIGITS_OF_TIME..].starts_with(b"]")
}

// === impl Prefixes ===

impl Prefixes {
    pub(crate) fn new() -> Result<Self, regex::Error> {
        regex::bytes::RegexBuilder::new(PREFIX).unicode(false).build().map(Self)
    }

    /// Returns the length of a known line prefix.
    pub(crate) fn len(&self, line: &[u8]) -> usize {
        let mut len = 0;
        for _ in 0..PREFIXES_MAX {
            match self.0.find(&line[len..]) {
                Some(found) if found.end() > 0 => len += found.end(),
                _ => break,
            }
        }
        len
    }
}

// === impl LineFrames ===

impl LineFrames {
    /// Creates the frames of the line at `start`, which are read when they are needed.
    pub(crate) fn new(start: usize) -> Self {
        Self { start, strings: None, prefix: None, shared_max: None, known: Vec::new() }
    }

    /// Returns the frame of the text that contains the byte at `at` of the line, and whether the next line, if
    /// any, has the same frame. Without a time, a prefix of only one line is not a frame.
    pub(crate) fn frame(
        &mut self,
        line: &[u8],
        at: usize,
        next: Option<&[u8]>,
        prefixes: &Prefixes,
    ) -> Option<(Frame, bool)> {
        let place = self.place(line, at, prefixes);
        if place != Place::Elsewhere {
            if !self.known.iter().any(|(known, ..)| *known == place) {
                let frame = self.frame_at(line, place);
                let is_shared = next.is_none_or(|next| frame.content(next).is_some());
                self.known.push((place, frame, is_shared));
            }
            let known = self.known.iter().find(|(known, ..)| *known == place);
            if let Some((_, frame, is_shared)) = known.filter(|(_, frame, is)| *is || frame.is_certain()) {
                return Some((frame.clone(), *is_shared));
            }
        }
        let next = next?;
        let max = *self.shared_max.get_or_insert_with(|| shared_max(line, next));
        shared_prefix(line, at, max, next).map(|frame| (frame, true))
    }

    /// Returns the length of the known prefix before the byte at `at`.
    pub(crate) fn prefix_before(&mut self, line: &[u8], at: usize, prefixes: &Prefixes) -> usize {
        let len = self.prefix(line, prefixes);
        if len <= at { len } else { prefixes.len(&line[..at]) }
    }

    fn prefix(&mut self, line: &[u8], prefixes: &Prefixes) -> usize {
        *self.prefix.get_or_insert_with(|| prefixes.len(line))
    }

    fn place(&mut self, line: &[u8], at: usize, prefixes: &Prefixes) -> Place {
        let strings = self.strings(line);
        let is_in = |member: &Member| member.start <= at && at < member.end;
        if let Some(number) = strings.members.iter().position(is_in) {
            return Place::Member(number);
        }
        if strings.element.is_some_and(|lead| lead < at) {
            return Place::Element;
        }
        if (1..=at).contains(&self.prefix(line, prefixes)) { Place::BehindPrefix } else { Place::Elsewhere }
    }

    fn strings(&mut self, line: &[u8]) -> &Strings {
        self.strings.get_or_insert_with(|| Strings { members: members(line), element: element(line) })
    }

    fn frame_at(&mut self, line: &[u8], place: Place) -> Frame {
        match place {
            Place::Member(number) => {
                let name = self.strings(line).members.get(number).map_or(DOCKER, |member| member.name);
                let mut streams = (0..STREAMS.len()).map(Frame::Docker);
                let stream = streams.find(|frame| name == DOCKER && frame.content(line).is_some());
                stream.unwrap_or(Frame::Member(name))
            }
            Place::Element => {
                let lead = &line[..=self.strings(line).element.unwrap_or_default()];
                Frame::Element(lead.iter().map(|byte| if *byte == b'[' { b' ' } else { *byte }).collect())
            }
            Place::BehindPrefix | Place::Elsewhere => {
                Frame::Prefix(line[..self.prefix.unwrap_or_default()].to_vec())
            }
        }
    }
}

/// Returns the offset of the quote if a line is one element of a list.
fn element(line: &[u8]) -> Option<usize> {
    let lead = line.iter().take_while(|byte| matches!(byte, b' ' | b'\t' | b'-' | b'[')).count();
    is_element(&line[lead..]).then_some(lead)
}

/// Returns the first member of each name in a line.
fn members(line: &[u8]) -> Vec<Member> {
    let mut found: Vec<(usize, Member)> = Vec::new();
    let mut from = 0;
    while let Some(name) = MEMBER.as_ref().and_then(|member| member.find_at(line, from)) {
        let number = MEMBERS.iter().position(|member| *member == name.as_bytes()).unwrap_or_default();
        if found.iter().all(|(other, _)| *other != number) {
            let end = end_of_string(line, name.end());
            found.push((number, Member { name: MEMBERS[number], start: name.end(), end }));
        }
        // The quote that opens a string may belong to the next name.
        from = name.end() - 1;
    }
    found.sort_unstable_by_key(|(number, _)| *number);
    found.into_iter().map(|(_, member)| member).collect()
}

// === impl Frame ===

impl Frame {
    /// Returns whether this is a frame even if the next line has a different one: lines with a time may be
    /// interleaved with lines of other programs.
    fn is_certain(&self) -> bool {
        let digits = |prefix: &[u8]| prefix.iter().filter(|byte| byte.is_ascii_digit()).count();
        match self {
            Self::Prefix(prefix) => digits(prefix) >= DIGITS_OF_TIME,
            Self::Member(_) | Self::Docker(_) | Self::Container(_) => true,
            Self::Element(_) | Self::Written(_) => false,
        }
    }

    /// Returns the range of the text in a line; `None` if the line has another frame.
    fn content(&self, line: &[u8]) -> Option<(usize, usize)> {
        match self {
            Self::Prefix(prefix) => Some((behind(prefix, line)?, line.len())),
            Self::Written(_) => Some((0, line.len())),
            Self::Member(opening) => {
                let start = memmem::find(line, opening)? + opening.len();
                Some((start, end_of_string(line, start)))
            }
            Self::Docker(stream) => {
                memmem::find(line, STREAMS[*stream].0)?;
                Self::Member(DOCKER).content(line)
            }
            Self::Container(stream) => {
                let marker = STREAMS[*stream].1;
                let start = memmem::find(&line[..line.len().min(STREAM_WITHIN)], marker)? + marker.len();
                matches!(line[start..], [b'P' | b'F', b' ', ..]).then_some((start + 2, line.len()))
            }
            Self::Element(lead) => {
                let is_like = |(a, b): (&u8, &u8)| a == b || matches!((a, b), (b' ', b'['));
                let is_framed = line.len() > lead.len() && lead.iter().zip(line).all(is_like);
                let quote = *lead.last()?;
                is_framed.then(|| {
                    let end = memchr::memrchr(quote, &line[lead.len()..])
                        .map_or(line.len(), |len| lead.len() + len);
                    (lead.len(), end)
                })
            }
        }
    }

    /// Returns the texts of all lines with this frame from `start`, the start of a line.
    pub(crate) fn view(&self, text: &[u8], start: usize) -> Mapped {
        if let Self::Written(view) = self {
            return view.resolve(text, start).unwrap_or_default();
        }
        let mut mapped = Mapped::with_capacity(text.len() - start);
        let mut at = start;
        while at < text.len() {
            let end = memchr(b'\n', &text[at..]).map_or(text.len(), |len| at + len);
            if let Some((from, to)) = self.content(&text[at..end]) {
                mapped.begin_frame(at + from);
                match self {
                    Self::Prefix(_) | Self::Written(_) | Self::Container(_) => {
                        mapped.keep(text, at + from, at + to);
                    }
                    Self::Member(_) | Self::Docker(_) | Self::Element(_) => {
                        views::add_unescaped(&mut mapped, text, at + from, at + to);
                    }
                }
                let ends = match self {
                    // Docker's line ends are part of the text.
                    Self::Docker(_) => false,
                    Self::Member(opening) => *opening != DOCKER && !text[..at + to].ends_with(b"\\n"),
                    Self::Container(_) => !text[at..at + from].ends_with(b"P "),
                    _ => true,
                };
                if ends && end < text.len() {
                    mapped.begin_frame(end);
                    mapped.keep(text, end, end + 1);
                }
            }
            at = end + 1;
        }
        mapped
    }
}

/// Returns the common prefix of a line and the next one up to `at`, if it is more than indentation. No longer
/// one than `max` can be common.
fn shared_prefix(line: &[u8], at: usize, max: usize, next: &[u8]) -> Option<Frame> {
    let ends = |end: &usize| matches!(line[end - 1], b' ' | b'\t' | b':' | b'|');
    let mut end = line[..at].iter().rposition(|byte| !byte.is_ascii_whitespace())? + 1;
    end += usize::from(end < at);
    let end = (1..=end.min(max)).rev().filter(ends).find(|end| behind(&line[..*end], next).is_some())?;
    let prefix = &line[..end];
    let is_counted = number(prefix).is_some_and(|number| self::number(next) == Some(number + 1));
    (prefix.trim_ascii().len() >= SHARED_MIN || is_counted).then(|| Frame::Prefix(prefix.to_vec()))
}

/// Returns the length up to which a line may be like the next one: the end of the first run that differs.
fn shared_max(line: &[u8], next: &[u8]) -> usize {
    let class = |byte: u8| if byte.is_ascii_digit() { b'0' } else { byte };
    let is_run = |byte: u8| matches!(byte, b'0' | b' ');
    let (mut i, mut j) = (0, 0);
    while let Some(byte) = line.get(i).map(|byte| class(*byte)) {
        let run = |text: &[u8]| text.iter().take_while(|other| class(**other) == byte).count();
        let (width, found) = if is_run(byte) {
            (run(&line[i..]), run(&next[j..]))
        } else {
            (1, usize::from(next.get(j) == Some(&byte)))
        };
        i += width;
        j += found;
        // The width of the indentation may differ.
        if found == 0 && (i > width || byte != b' ') {
            break;
        }
    }
    i
}

/// Returns the number at the start of a line.
fn number(line: &[u8]) -> Option<u32> {
    let line = line.trim_ascii_start();
    let digits = line.iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&line[..digits]).ok()?.parse().ok()
}

/// Returns whether a text is one quoted string, optionally followed by a comma.
fn is_element(text: &[u8]) -> bool {
    let end = match text.first() {
        Some(b'"') => end_of_string(text, 1),
        Some(b'\'') => memchr(b'\'', &text[1..]).map_or(text.len(), |len| 1 + len),
        _ => return false,
    };
    end < text.len() && matches!(text[end + 1..].trim_ascii(), b"" | b",")
}

/// Returns whether a line is a log driver record that a later record continues.
pub(crate) fn is_partial(line: &[u8]) -> bool {
    match memmem::find(line, DOCKER) {
        Some(start) => {
            let end = end_of_string(line, start + DOCKER.len());
            end < line.len() && !line[..end].ends_with(b"\\n")
        }
        None => of_container(line).is_some_and(|(start, _)| line[..start].ends_with(b"P ")),
    }
}

/// Returns the content of a container runtime's line.
fn of_container(line: &[u8]) -> Option<(usize, usize)> {
    (0..STREAMS.len()).find_map(|stream| Frame::Container(stream).content(line))
}

/// Returns the frame of a line split by a log driver.
pub(crate) fn of_divided(line: &[u8]) -> Option<Frame> {
    if !is_partial(line) {
        return None;
    }
    let streams = (0..STREAMS.len()).flat_map(|stream| [Frame::Docker(stream), Frame::Container(stream)]);
    let mut frames = streams.chain([Frame::Member(DOCKER)]);
    frames.find(|frame| frame.content(line).is_some())
}

/// Returns the end of the string that starts at `start`.
fn end_of_string(line: &[u8], start: usize) -> usize {
    let mut at = start;
    while let Some(len) = memchr::memchr2(b'"', b'\\', line.get(at..).unwrap_or_default()) {
        if line[at + len] == b'"' {
            return at + len;
        }
        at += len + 2;
    }
    line.len()
}

/// Returns the offset after a prefix, whose digits and gaps may differ.
///
/// The last space may be missing if nothing follows.
pub(crate) fn behind(prefix: &[u8], line: &[u8]) -> Option<usize> {
    let run = |text: &[u8], is: fn(&u8) -> bool| text.iter().take_while(|byte| is(byte)).count();
    let is_gap = |byte: &u8| *byte == b' ';
    let (mut i, mut j) = (run(prefix, is_gap), run(line, is_gap));
    if i == prefix.len() {
        return (j >= i).then_some(i);
    }
    while i < prefix.len() {
        let (left, right) = (&prefix[i..], &line[j..]);
        let (is, required): (fn(&u8) -> bool, usize) = match left[0] {
            b'0'..=b'9' => (u8::is_ascii_digit, 1),
            b' ' => (is_gap, 1),
            byte => {
                if right.first() != Some(&byte) {
                    return None;
                }
                (i, j) = (i + 1, j + 1);
                continue;
            }
        };
        let (width, found) = (run(left, is), run(right, is));
        i += width;
        if i == prefix.len() && left[0] == b' ' {
            // A wider gap is indentation of the text.
            return (found >= width || right.is_empty()).then(|| j + found.min(width));
        }
        if found < required {
            return None;
        }
        j += found;
    }
    Some(j)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str, opener: &str) -> String {
        let first = &text[..text.find('\n').unwrap()];
        let at = first.find(opener).unwrap();
        let next = text[first.len() + 1..].lines().next().map(str::as_bytes);
        let prefixes = Prefixes::new().unwrap();
        let frame = LineFrames::new(0).frame(first.as_bytes(), at, next, &prefixes);
        frame.map_or_else(String::new, |(frame, _)| {
            String::from_utf8_lossy(&frame.view(text.as_bytes(), 0).text).into_owned()
        })
    }

    #[test]
    fn lines_lose_what_their_readers_and_loggers_added() {
        for (text, expected) in [
            (
                "Nov 19 05:38:09 n1 p[12]: X\nNov 19 05:38:10 n1 other[3]: no\nNov 20 06:00:00 n1 p[1234]:   b\n",
                "X\n  b\n",
            ),
            ("2026-11-19T05:38:09.123Z X\n2026-11-19T05:38:10.1234Z b", "X\nb"),
            (
                "2026-11-19 05:38:09,123 - util.py[DEBUG]: X\n2026-11-19 05:38:09,124 - util.py[DEBUG]: b",
                "X\nb",
            ),
            ("I1119 05:38:09.123456    1234 a.go:12] X\nI1119 05:38:09.123457       7 a.go:13]  b", "X\n b"),
            ("[    1.234567] X\n[   11.234567] b\n", "X\nb\n"),
            ("     9\tX\n    10\tb\n", "X\nb\n"),
            ("9:X\n10:b\n", "X\nb\n"),
            ("web-1  | X\nweb-1  |   b\nother | c", "X\n  b\n"),
            ("> X\n>  b\n>\n> c\n", "X\n b\n\nc\n"),
            (
                "{\"log\":\"X\\n\",\"stream\":\"a\"}\n{\"log\":\"long \",\"stream\":\"a\"}\n{\"log\":\"line\\n\"}\n",
                "X\nlong line\n",
            ),
            ("time=1 level=info msg=\"X \\\"q\\\"\" a=b\nno\ntime=2 level=info msg=\"b\"\n", "X \"q\"\nb\n"),
            ("  \"X\",\n  \"b\"\n]\n", "X\nb\n"),
            ("- 'X'\n- 'b'\n", "X\nb\n"),
            ("      9 X\n     10   b\n", "X\n  b\n"),
            ("pod container X\npod container   b\nend\n", "X\n  b\n"),
            ("X alone\nb\n", ""),
        ] {
            assert_eq!(shown(text, "X"), expected, "{text}");
        }
    }

    #[test]
    fn records_begin_with_a_time() {
        for text in [
            "I1119 05:38:09.123456    1234 a.go:12] x",
            "Nov  9 05:38:09 node-1 kernel: x",
            "2026-11-19T05:38:09Z x",
            "2026-11-19 05:38:09,123 - util.py[DEBUG]: x",
            "[   12.345678] x",
            "time=\"2026-11-19T05:38:09Z\" level=info",
            "{\"level\":\"info\"}",
        ] {
            assert!(begins_record(text.as_bytes()), "{text}");
        }
        for text in
            ["", "hunter22", "I1119", "2026-11-19", "[12.34] x", "{\"auth\":1}", "[kubelet] x", "E0102abc"]
        {
            assert!(!begins_record(text.as_bytes()), "{text}");
        }
    }

    #[test]
    fn lines_that_docker_divided_are_told_apart() {
        assert!(is_partial(br#"{"log":"a","stream":"stdout"}"#));
        assert!(!is_partial(br#"{"log":"a\n","stream":"stdout"}"#));
        assert!(!is_partial(br#"{"log":"a"#) && !is_partial(b"a"));
    }
}
