//! The head of a log line: time, process, level.
//!
//! Writers wrap each other (the journal around klog, a container runtime around both), so heads are removed
//! one by one.

mod subject;

use crate::moment::{Fields, Time};

#[cfg(test)]
pub(crate) use self::subject::is_report_of_cloud_init;
pub(crate) use self::subject::{report_of_cloud_init, subject, unit};

/// Maximum number of nested heads: console, journal, container runtime, and the program itself.
const MAX_HEADS: usize = 5;

/// Maximum offset of a key such as `time=` or `"ts":` that contains the line's own time.
const KEY_WINDOW: usize = 256;

/// Maximum offset of a time of day that belongs to the head.
const CLOCK_WINDOW: usize = 48;

/// The levels of syslog.
const LEVELS: [&[u8]; 9] =
    [b"emerg", b"alert", b"crit", b"err", b"error", b"warning", b"notice", b"info", b"debug"];

const MONTHS: [&[u8]; 12] =
    [b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec"];

/// The parsed head of a line.
#[expect(clippy::struct_excessive_bools, reason = "independent properties of a line")]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Head<'a> {
    pub(crate) time: Option<Time>,
    /// The time written by the log itself, if the message may contain another.
    pub(crate) outer_time: Option<Time>,
    /// The unit or program named by the line.
    pub(crate) process: Option<&'a str>,
    /// Its process ID, if present.
    pub(crate) pid: Option<&'a str>,
    /// Whether the name is at the position of a program name in syslog and the journal, so that it is not
    /// part of the message.
    pub(crate) is_program: bool,
    /// Whether a program with an unreadable name wrote the line.
    pub(crate) is_unreadable: bool,
    /// Whether the writer marked the line as not an error.
    pub(crate) informational: bool,
    /// Whether the program's own message starts here, inside a head of the journal or a runtime.
    pub(crate) begins: bool,
    /// The text after the head.
    pub(crate) message: &'a [u8],
}

/// A program's name, and its process ID if present.
type Program<'a> = (&'a str, Option<&'a str>);

struct Cursor<'a> {
    rest: &'a [u8],
}

/// Parses the head of a line. Never fails: a line without a head has an empty one.
pub(crate) fn head(line: &[u8]) -> Head<'_> {
    let mut head = Head::default();
    let mut cursor = Cursor { rest: line };
    if let Some((time, program)) = cursor.other_head() {
        head.see_process(Some(program), true);
        cursor.skip_one_space();
        let Some(time) = time else {
            // A time in the message is not the log's.
            head.message = cursor.rest;
            return head;
        };
        head.see(time);
    } else if cursor.is_verbose() {
        head.is_unreadable = true;
    }
    for _ in 0..MAX_HEADS {
        let before = cursor.rest;
        let wrapped = cursor.skip_ornaments();
        let taken = cursor.rest.len();
        if let Some(time) = cursor.iso_time() {
            head.see(time);
            let streamed = cursor.container_stream();
            let message = cursor.rest;
            cursor.skip_spaces();
            // cloud-init separates its messages with a dash.
            let process = if message.starts_with(b" - ") { None } else { cursor.host_and_process() };
            head.see_process(process, false);
            head.begins |= process.is_none() && !streamed && !wrapped;
            // Indentation belongs to the message, except for the space that ends a head.
            cursor.rest = if process.is_none() { message } else { cursor.rest };
            if !streamed {
                cursor.skip_one_space();
            }
        } else if let Some(time) = cursor.syslog_time() {
            head.see(time);
            let before = cursor.rest.trim_ascii_start();
            let process = cursor.host_and_process();
            // Without a preceding host, the name may be a word of the message.
            let named = process.is_some_and(|(name, _)| !before.starts_with(name.as_bytes()));
            head.see_process(process, named);
            let is_syslog = !matches!(time, Time::Full(_));
            head.is_unreadable |= is_syslog && head.process.is_none() && !head.begins;
            cursor.skip_one_space();
        } else if let Some((time, informational)) = cursor.klog() {
            head.see(time);
            head.informational = informational;
            head.begins = true;
        } else if let Some(time) = cursor.uptime() {
            head.see(time);
            let process = cursor.process().or_else(|| cursor.host_and_numbered_process());
            head.see_process(process, false);
            cursor.skip_one_space();
        } else if let Some((time, informational)) = cursor.keyed() {
            if let Some(time) = time {
                head.see(time);
            }
            head.informational |= informational;
            head.begins = true;
            cursor.rest = before;
            break;
        }
        if cursor.rest.len() == taken {
            cursor.rest = before;
            break;
        }
    }
    head.message = cursor.rest;
    head
}

/// Returns the program's own message: without the head, klog's source location, the name of an etcd package,
/// the key of a structured entry, and an opening quote.
pub(crate) fn message(line: &[u8]) -> &[u8] {
    const KEYS: [&[u8]; 5] = [b" msg=\"", b" msg=", b"\"msg\":\"", b"\"message\":\"", b"\"MESSAGE\":\""];
    let (outer, text) = without_head(line);
    let text =
        if outer.begins { klog_message(text).or_else(|| etcd_message(text)).unwrap_or(text) } else { text };
    let window = &text[..text.len().min(KEY_WINDOW)];
    let keyed = || KEYS.iter().find_map(|key| Some(memchr::memmem::find(window, key)? + key.len()));
    let is_keyed = text.starts_with(b"{") || text.starts_with(b"time=") || text.starts_with(b"level=");
    let text = if is_keyed { keyed().map_or(text, |at| &text[at..]) } else { text };
    text.strip_prefix(b"\"").unwrap_or(text)
}

/// Returns the text after the head of a line, for programs without klog or structured entries.
pub(crate) fn behind_head(line: &[u8]) -> &[u8] {
    without_head(line).1
}

fn without_head(line: &[u8]) -> (Head<'_>, &[u8]) {
    let mut outer = head(line);
    if outer.time.is_none() && outer.process.is_none() {
        // A program name without a time.
        let mut cursor = Cursor { rest: outer.message };
        if cursor.process().is_some() {
            outer = head(cursor.rest);
        }
    }
    let text = outer.message.trim_ascii_start();
    // systemd's status on a console.
    let text = text.strip_prefix(b"[  OK  ] ").unwrap_or(text);
    (outer, text)
}

/// `1234 server.go:1] text`
fn klog_message(text: &[u8]) -> Option<&[u8]> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let place = text.get(digits..).filter(|_| digits > 0)?.strip_prefix(b" ")?;
    let end = place.iter().position(|byte| *byte == b']' || *byte == b' ')?;
    place[end..].strip_prefix(b"] ")
}

/// `I | etcdmain: text`
fn etcd_message(text: &[u8]) -> Option<&[u8]> {
    let rest = text.get(1..)?.strip_prefix(b" | ")?;
    let name = rest.iter().take_while(|byte| byte.is_ascii_alphanumeric() || **byte == b'/').count();
    rest[name..].strip_prefix(b": ")
}

/// Parses a time in the message itself: `Cloud-init v. 24.1 finished at Thu, 01 Jan 2026 00:01:00 +0000. …`.
pub(crate) fn spoken_time(message: &[u8]) -> Option<Time> {
    const MONTH_AT: std::ops::Range<usize> = 8..11;
    let window = &message[..message.len().min(KEY_WINDOW)];
    let at = memchr::memmem::find(window, b" at ")? + 4;
    let text = window.get(at..)?;
    // `Thu, 01 Jan 2026 00:01:00 +0000`
    if text.get(3..5) != Some(b", ") || text.get(16) != Some(&b' ') {
        return None;
    }
    let (month, _) = Cursor::month(text.get(MONTH_AT)?)?;
    let mut fields = Fields {
        day: Cursor::small(text.get(5..7))?,
        month,
        year: Some(i16::try_from(Cursor::number(text.get(12..16)?)?).ok()?),
        ..Fields::default()
    };
    Cursor::clock(text.get(17..)?, &mut fields)?;
    let zone = text.get(26..31)?;
    if let (Some(hours), Some(minutes)) = (Cursor::number(&zone[1..3]), Cursor::number(&zone[3..5])) {
        let total = hours * 60 + minutes;
        fields.offset_minutes = if zone[0] == b'-' { -total } else { total };
    }
    fields.time()
}

/// Parses the journal's last time from the first line of older `journalctl` output: the only place with a
/// year.
pub(crate) fn journal_end(line: &[u8]) -> Option<Time> {
    let begins = [&b"-- Logs begin at "[..], b"-- Journal begins at "];
    let rest = begins.iter().find_map(|begin| line.strip_prefix(*begin))?;
    let end = [&b"end at "[..], b"ends at "]
        .iter()
        .find_map(|end| Some(&rest[memchr::memmem::find(rest, end)? + end.len()..]))
        .unwrap_or(rest);
    let mut cursor = Cursor { rest: end };
    cursor.skip_ornaments();
    cursor.iso_time()
}

// === impl Head ===

impl<'a> Head<'a> {
    fn see(&mut self, time: Time) {
        self.outer_time = self.outer_time.or(Some(time));
        // The outermost complete time is used: one clock writes it for all programs of the machine.
        match self.time {
            Some(Time::Full(_)) => {}
            _ if matches!(time, Time::Uptime(_)) && self.time.is_some() => {}
            _ => self.time = Some(time),
        }
    }

    /// `syslog` marks a syslog head, where the name is always a program's.
    fn see_process(&mut self, process: Option<Program<'a>>, syslog: bool) {
        if let (None, Some((name, pid))) = (self.process, process) {
            (self.process, self.pid) = (Some(name), pid);
            self.is_program = syslog || pid.is_some();
        }
    }
}

// === impl Cursor ===

impl<'a> Cursor<'a> {
    fn skip_spaces(&mut self) {
        let spaces = self.rest.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        self.rest = &self.rest[spaces..];
    }

    fn skip_one_space(&mut self) {
        self.rest = self.rest.strip_prefix(b" ").unwrap_or(self.rest);
    }

    /// Skips bullets, brackets and tags that tools write before a time: `* `, `[CLOUDINIT]`, `+++ [`.
    ///
    /// Returns whether the time is bracketed, which means that a tool prefixed the lines of another program.
    fn skip_ornaments(&mut self) -> bool {
        const WEEKDAYS: [&[u8]; 7] = [b"Mon ", b"Tue ", b"Wed ", b"Thu ", b"Fri ", b"Sat ", b"Sun "];
        self.skip_spaces();
        for ornament in [&b"* "[..], b"> ", b"| ", b"[CLOUDINIT]", b"+++ [", b"!!! ["] {
            if let Some(rest) = self.rest.strip_prefix(ornament) {
                self.rest = rest;
                self.skip_spaces();
            }
        }
        // A weekday before a date, bracketed or not.
        let unbracketed = self.rest.strip_prefix(b"[").unwrap_or(self.rest);
        if let Some(rest) = WEEKDAYS.iter().find_map(|day| unbracketed.strip_prefix(*day)) {
            self.rest = rest;
        }
        // A bracketed date, but not a bracketed uptime or a bracketed word such as `[preflight]`.
        if let [b'[', b'1'..=b'2', b'0'..=b'9', b'0'..=b'9', b'0'..=b'9', b'-' | b'/', ..] = self.rest {
            self.rest = &self.rest[1..];
            return true;
        }
        false
    }

    fn number(bytes: &[u8]) -> Option<i32> {
        if bytes.is_empty() {
            return None;
        }
        bytes.iter().try_fold(0i32, |sum, byte| {
            byte.is_ascii_digit().then(|| sum.checked_mul(10)?.checked_add(i32::from(byte - b'0')))?
        })
    }

    fn small(bytes: Option<&[u8]>) -> Option<i8> {
        Self::number(bytes?).and_then(|number| i8::try_from(number).ok())
    }

    /// Parses `hh:mm:ss` and an optional fraction; returns the number of bytes consumed.
    fn clock(bytes: &[u8], fields: &mut Fields) -> Option<usize> {
        if bytes.get(2) != Some(&b':') || bytes.get(5) != Some(&b':') {
            return None;
        }
        fields.hour = Self::small(bytes.get(0..2))?;
        fields.minute = Self::small(bytes.get(3..5))?;
        fields.second = Self::small(bytes.get(6..8))?;
        let mut used = 8;
        if let Some(b'.' | b',') = bytes.get(8) {
            let digits = bytes[9..].iter().take_while(|byte| byte.is_ascii_digit()).count();
            let kept = digits.min(6);
            let scale = 10i32.pow(u32::try_from(6 - kept).unwrap_or(0));
            fields.micros = Self::number(&bytes[9..9 + kept]).unwrap_or(0) * scale;
            used = 9 + digits;
        }
        Some(used)
    }

    /// `2026-01-02T03:04:05.678Z`, `2026-01-02 03:04:05,678`, `2026/01/02 03:04:05`.
    fn iso_time(&mut self) -> Option<Time> {
        let (time, used) = Self::iso(self.rest)?;
        self.rest = &self.rest[used..];
        if let [b']' | b':', ..] = self.rest {
            self.rest = &self.rest[1..];
        }
        Some(time)
    }

    fn iso(bytes: &[u8]) -> Option<(Time, usize)> {
        let separator = *bytes.get(4)?;
        if !matches!(separator, b'-' | b'/') || bytes.get(7) != Some(&separator) {
            return None;
        }
        if !matches!(bytes.get(10), Some(b'T' | b' ')) {
            return None;
        }
        let mut fields = Fields {
            year: Some(i16::try_from(Self::number(bytes.get(0..4)?)?).ok()?),
            month: Self::small(bytes.get(5..7))?,
            day: Self::small(bytes.get(8..10))?,
            ..Fields::default()
        };
        let mut used = 11 + Self::clock(&bytes[11..], &mut fields)?;
        match bytes.get(used) {
            Some(b'Z') => used += 1,
            Some(sign @ (b'+' | b'-')) => {
                let digits = &bytes[used + 1..];
                let (hours, minutes, length) = if digits.get(2) == Some(&b':') {
                    (digits.get(0..2), digits.get(3..5), 5)
                } else {
                    (digits.get(0..2), digits.get(2..4), 4)
                };
                if let (Some(hours), Some(minutes)) =
                    (hours.and_then(Self::number), minutes.and_then(Self::number))
                {
                    let total = hours * 60 + minutes;
                    fields.offset_minutes = if *sign == b'-' { -total } else { total };
                    used += 1 + length;
                }
            }
            _ => {}
        }
        Some((fields.time()?, used))
    }

    /// Parses `Jan  2 03:04:05`, the format of syslog and `journalctl`, optionally with a weekday before it
    /// and a year after it. Chinese and Japanese locales write `1月  2`.
    fn syslog_time(&mut self) -> Option<Time> {
        let (month, mut at) = Self::month(self.rest)?;
        let padding = self.rest.get(at..)?.iter().take_while(|byte| **byte == b' ').count();
        if !(1..=2).contains(&padding) {
            return None;
        }
        at += padding;
        let digits = self.rest.get(at..)?.iter().take(2).take_while(|byte| byte.is_ascii_digit()).count();
        let mut fields =
            Fields { month, day: Self::small(self.rest.get(at..at + digits))?, ..Fields::default() };
        at += digits;
        if self.rest.get(at) != Some(&b' ') {
            return None;
        }
        at += 1;
        at += Self::clock(self.rest.get(at..)?, &mut fields)?;
        // `[Fri Jan  2 03:04:05 2026]`, the format of `dmesg -T`.
        if let Some(year) = self.rest.get(at + 1..at + 5).and_then(Self::number)
            && self.rest.get(at) == Some(&b' ')
            && matches!(self.rest.get(at + 5), Some(b']' | b' ') | None)
        {
            fields.year = i16::try_from(year).ok();
            at += 5;
            at += usize::from(self.rest.get(at) == Some(&b']'));
        }
        let time = fields.time()?;
        self.rest = &self.rest[at..];
        Some(time)
    }

    /// Parses the month at the start of a text; returns it and its length.
    fn month(text: &[u8]) -> Option<(i8, usize)> {
        let digits = text.iter().take(2).take_while(|byte| byte.is_ascii_digit()).count();
        if digits > 0 {
            let sign = "月".as_bytes();
            let month = Self::small(text.get(..digits))?;
            return text.get(digits..)?.starts_with(sign).then_some((month, digits + sign.len()));
        }
        let name = text.get(..3)?;
        let index = MONTHS.iter().position(|month| *month == name)?;
        Some((i8::try_from(index + 1).ok()?, 3))
    }

    /// `E0102 03:04:05.678901    1234 server.go:1] `
    fn klog(&mut self) -> Option<(Time, bool)> {
        let level = *self.rest.first()?;
        if !matches!(level, b'I' | b'W' | b'E' | b'F') || self.rest.get(5) != Some(&b' ') {
            return None;
        }
        let mut fields = Fields {
            month: Self::small(self.rest.get(1..3))?,
            day: Self::small(self.rest.get(3..5))?,
            ..Fields::default()
        };
        let used = 6 + Self::clock(self.rest.get(6..)?, &mut fields)?;
        let time = fields.time()?;
        self.rest = &self.rest[used..];
        Some((time, level == b'I'))
    }

    /// `[   12.345678] `, the kernel's format.
    fn uptime(&mut self) -> Option<Time> {
        let inner = self.rest.strip_prefix(b"[")?;
        let spaces = inner.iter().take_while(|byte| **byte == b' ').count();
        let digits = inner[spaces..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        let dot = spaces + digits;
        if digits == 0 || digits > 9 || inner.get(dot) != Some(&b'.') {
            return None;
        }
        let fraction = inner[dot + 1..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        let seconds = i64::from(Self::number(&inner[spaces..dot])?);
        let kept = fraction.min(6);
        let micros = i64::from(Self::number(&inner[dot + 1..dot + 1 + kept])?)
            * 10i64.pow(u32::try_from(6 - kept).unwrap_or(0));
        let mut end = dot + 1 + fraction;
        // The time since the previous entry: `<    0.100000 >`.
        if inner[end..].starts_with(b" <") {
            end += inner[end..].iter().take(24).position(|byte| *byte == b'>')? + 1;
        }
        if inner.get(end) != Some(&b']') {
            return None;
        }
        self.rest = &inner[end + 1..];
        Some(Time::Uptime(seconds * 1_000_000 + micros))
    }

    /// Skips a stream prefix of container logs, such as `stderr F `. Returns whether there was one.
    fn container_stream(&mut self) -> bool {
        for mark in [&b" stderr F "[..], b" stdout F ", b" stderr P ", b" stdout P "] {
            if let Some(rest) = self.rest.strip_prefix(mark) {
                self.rest = rest;
                return true;
            }
        }
        false
    }

    /// Parses formats of `journalctl` and syslog that do not start with a time: a priority, a Unix time, or a
    /// month in another language.
    fn other_head(&mut self) -> Option<(Option<Time>, Program<'a>)> {
        let before = self.rest;
        self.skip_priority();
        let program = self.structured_head().or_else(|| self.unix_head()).or_else(|| self.local_head());
        let is_time =
            matches!(self.rest.first(), Some(byte) if byte.is_ascii_uppercase() || byte.is_ascii_digit());
        // The text after a priority is parsed like any other line.
        if program.is_none() && !is_time {
            self.rest = before;
        }
        program
    }

    /// `<30>`
    fn skip_priority(&mut self) {
        let Some(rest) = self.rest.strip_prefix(b"<") else { return };
        let digits = rest.iter().take(4).take_while(|byte| byte.is_ascii_digit()).count();
        if let (1..=3, Some(rest)) = (digits, rest[digits..].strip_prefix(b">")) {
            self.rest = rest;
        }
    }

    /// `1 2026-01-02T03:04:05Z host program 12 - - ` (RFC 5424), optionally without the version.
    fn structured_head(&mut self) -> Option<(Option<Time>, Program<'a>)> {
        let rest = self.rest.strip_prefix(b"1 ").unwrap_or(self.rest);
        let (time, used) = Self::iso(rest)?;
        let mut words = rest.get(used..)?.strip_prefix(b" ")?.splitn(5, |byte| *byte == b' ');
        let (_host, name, pid, _id, data) =
            (words.next()?, words.next()?, words.next()?, words.next()?, words.next()?);
        let is_number = !pid.is_empty() && pid.iter().all(u8::is_ascii_digit);
        if !(is_number || pid == b"-") || !matches!(data.first(), Some(b'-' | b'[')) {
            return None;
        }
        let program = (std::str::from_utf8(name).ok()?, std::str::from_utf8(pid).ok());
        // Structured data may contain spaces, so it is left in the message.
        self.rest = data;
        Some((Some(time), program))
    }

    /// `1767323340.123456 host program[12]: `
    fn unix_head(&mut self) -> Option<(Option<Time>, Program<'a>)> {
        let before = self.rest;
        let digits = before.iter().take(12).take_while(|byte| byte.is_ascii_digit()).count();
        let fraction =
            before.get(digits + 1..)?.iter().take(7).take_while(|byte| byte.is_ascii_digit()).count();
        if !(9..=11).contains(&digits) || before[digits] != b'.' || fraction != 6 {
            return None;
        }
        self.rest = &before[digits + 1 + fraction..];
        let program = self.host_and_process();
        if program.is_none() {
            self.rest = before;
        }
        Some((None, program?))
    }

    /// `janv. 02 03:04:05 host program[12]: `, `Fri 2026-01-02 03:04:05 UTC host program[12]: `
    fn local_head(&mut self) -> Option<(Option<Time>, Program<'a>)> {
        let before = self.rest;
        let mut known = Self { rest: before };
        known.skip_ornaments();
        let is_known = known.syslog_time().is_some() || known.klog().is_some();
        let time = known.iso_time();
        self.rest = Self::after_clock(before)?;
        let has_zone = self.skip_zone();
        // An English month is in the column of a table.
        let prefix = &before[..before.len() - self.rest.len()];
        let is_column = MONTHS.iter().any(|month| memchr::memmem::find(prefix, month).is_some());
        let is_word = (before[0].is_ascii_alphabetic() || !before[0].is_ascii()) && !is_column;
        let program = match time {
            Some(_) if has_zone => self.host_and_process(),
            None if !is_known && is_word => self.host_and_numbered_process(),
            _ => None,
        };
        if program.is_none() {
            self.rest = before;
        }
        Some((time, program?))
    }

    /// `Fri 2026-01-02 03:04:05.123456 UTC [s=…]`, before the fields of an entry.
    fn is_verbose(&self) -> bool {
        let mut cursor = Self { rest: Self::after_clock(self.rest).unwrap_or_default() };
        cursor.skip_zone();
        cursor.rest.starts_with(b" [s=")
    }

    /// Returns the text after the first time of day near the start of a line.
    fn after_clock(line: &[u8]) -> Option<&[u8]> {
        let window = &line[..line.len().min(CLOCK_WINDOW)];
        let is_clock = |at: &usize| {
            let digits = |from: usize| window[from..from + 2].iter().all(u8::is_ascii_digit);
            window[*at] == b':'
                && window[at + 3] == b':'
                && digits(at - 2)
                && digits(at + 1)
                && digits(at + 4)
        };
        let at = (3..window.len().saturating_sub(5)).find(is_clock)?;
        // A unit is followed by its description.
        let is_quoted = line[..at].iter().any(|byte| matches!(byte, b'"' | b'{' | b'=' | b']'))
            || memchr::memmem::find(&line[..at], b".service - ").is_some();
        let rest = &line[at + 6..];
        let fraction = rest.iter().take_while(|byte| byte.is_ascii_digit() || **byte == b'.').count();
        (!is_quoted).then(|| &rest[fraction..])
    }

    /// ` UTC`, ` CEST`, ` +01`
    fn skip_zone(&mut self) -> bool {
        const LEVELS: [&[u8]; 6] = [b"INFO", b"WARN", b"ERROR", b"DEBUG", b"TRACE", b"FATAL"];
        let Some(rest) = self.rest.strip_prefix(b" ") else { return false };
        let length = rest.iter().take_while(|byte| !byte.is_ascii_whitespace()).count();
        let word = &rest[..length];
        let is_name = (2..=5).contains(&length) && word.iter().all(u8::is_ascii_uppercase);
        let is_offset =
            length > 2 && matches!(word[0], b'+' | b'-') && word[1..].iter().all(u8::is_ascii_digit);
        let is_zone = is_name && !LEVELS.contains(&word) || is_offset;
        if is_zone {
            self.rest = &rest[length..];
        }
        is_zone
    }

    /// Parses `host program[12]: `.
    ///
    /// The number is required, because otherwise words of a message could look like host and program.
    fn host_and_numbered_process(&mut self) -> Option<Program<'a>> {
        let before = self.rest;
        let process = self.host_and_process().filter(|(_, pid)| pid.is_some());
        if process.is_none() {
            self.rest = before;
        }
        process
    }

    /// Skips `daemon.info ` or `<daemon.info> `, which busybox and BSD write before the name.
    fn skip_level(&mut self) {
        let length = self.rest.iter().take_while(|byte| !byte.is_ascii_whitespace()).count();
        let word = &self.rest[..length];
        let level = word.iter().rposition(|byte| *byte == b'.').map(|at| &word[at + 1..]);
        let level = level.map(|level| level.strip_suffix(b">").unwrap_or(level));
        let is_level = level.is_some_and(|level| LEVELS.contains(&level));
        if is_level && self.rest.len() > length {
            self.rest = &self.rest[length + 1..];
        }
    }

    /// `host program[12]: `; the host is skipped.
    fn host_and_process(&mut self) -> Option<Program<'a>> {
        self.skip_spaces();
        self.skip_level();
        let before = self.rest;
        let host = self.rest.iter().take_while(|byte| !byte.is_ascii_whitespace()).count();
        // Without a host, the line starts with the program.
        if self.rest[..host].ends_with(b"]:") {
            return self.process();
        }
        let next = self.rest.get(host + 1..)?;
        self.rest = next;
        self.skip_level();
        let process = self.process();
        if process.is_none() {
            self.rest = before;
            return self.process();
        }
        process
    }

    /// `program[12]: ` or `program: `
    fn process(&mut self) -> Option<Program<'a>> {
        self.skip_spaces();
        let name = self
            .rest
            .iter()
            .take_while(|byte| {
                byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'@' | b'/' | b'(' | b')')
            })
            .count();
        if name == 0 || name > 64 {
            return None;
        }
        let after = &self.rest[name..];
        let mut pid = None;
        let end = if after.first() == Some(&b'[') {
            let close = after.iter().take(16).position(|byte| *byte == b']')?;
            if !after[1..close].iter().all(u8::is_ascii_digit) || after.get(close + 1) != Some(&b':') {
                return None;
            }
            pid = std::str::from_utf8(&after[1..close]).ok();
            close + 2
        } else if after.starts_with(b": ") {
            1
        } else {
            return None;
        };
        let process = std::str::from_utf8(&self.rest[..name]).ok()?;
        self.rest = &after[end..];
        Some((process, pid))
    }

    /// Parses times and levels written as `time="…" level=…` or as JSON members.
    fn keyed(&mut self) -> Option<(Option<Time>, bool)> {
        let window = &self.rest[..self.rest.len().min(KEY_WINDOW)];
        let value = |keys: &[&[u8]]| {
            keys.iter().find_map(|key| {
                let at = memchr::memmem::find(window, key)?;
                Some(&window[at + key.len()..])
            })
        };
        let stamp = value(&[
            b"time=\"",
            b"\"ts\":\"",
            b"\"time\":\"",
            b"\"timestamp\":\"",
            b"\"@timestamp\":\"",
            b"time=",
        ]);
        let level = value(&[b"level=", b"\"level\":\""]);
        if stamp.is_none() && level.is_none() {
            return None;
        }
        let informational = level.is_some_and(|level| {
            level.starts_with(b"info") || level.starts_with(b"debug") || level.starts_with(b"\"info")
        });
        Some((stamp.and_then(Self::iso).map(|(time, _)| time), informational))
    }
}

#[cfg(test)]
mod tests;
