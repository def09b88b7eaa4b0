//! The head of a log line: time, process, level. Many writers wrap each other (the journal around klog, a container
//! runtime around both), so heads are taken off one by one.

use crate::moment::{Fields, Time};

/// Heads wrapped around each other: console, journal, container runtime, the program itself.
const MAX_HEADS: usize = 5;

/// How far into a line a key such as `time=` or `"ts":` may stand and still be the line's own time.
const KEY_WINDOW: usize = 256;

/// What the head of a line tells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Head<'a> {
    pub(crate) time: Option<Time>,
    /// The time the log itself wrote, where the message may tell another.
    pub(crate) outer_time: Option<Time>,
    /// The unit or program that the line names.
    pub(crate) process: Option<&'a str>,
    /// Its process id, where the line has one.
    pub(crate) pid: Option<&'a str>,
    /// The name stands where syslog and the journal put a program's, so it is not part of the message.
    pub(crate) is_program: bool,
    /// The writer says that this is not an error.
    pub(crate) informational: bool,
    /// The program began a message of its own here, whatever the journal or a runtime wrapped around it.
    pub(crate) begins: bool,
    /// What follows the head.
    pub(crate) message: &'a [u8],
}

struct Cursor<'a> {
    rest: &'a [u8],
}

/// Reads the head of a line. Never fails: a line without a head has an empty one.
pub(crate) fn head(line: &[u8]) -> Head<'_> {
    let mut head = Head::default();
    let mut cursor = Cursor { rest: line };
    for _ in 0..MAX_HEADS {
        let before = cursor.rest;
        let wrapped = cursor.skip_ornaments();
        let taken = cursor.rest.len();
        if let Some(time) = cursor.iso_time() {
            head.see(time);
            let streamed = cursor.container_stream();
            let message = cursor.rest;
            cursor.skip_spaces();
            let process = cursor.host_and_process();
            head.see_process(process, false);
            head.begins |= process.is_none() && !streamed && !wrapped;
            // Indentation is the message's own, except for the one space that ends a head.
            cursor.rest = if process.is_none() { message } else { cursor.rest };
            if !streamed {
                cursor.skip_one_space();
            }
        } else if let Some(time) = cursor.syslog_time() {
            head.see(time);
            let before = cursor.rest.trim_ascii_start();
            let process = cursor.host_and_process();
            // Without a host before it, the name may be a word of the message.
            let named = process.is_some_and(|(name, _)| !before.starts_with(name.as_bytes()));
            head.see_process(process, named);
            cursor.skip_one_space();
        } else if let Some((time, informational)) = cursor.klog() {
            head.see(time);
            head.informational = informational;
            head.begins = true;
        } else if let Some(time) = cursor.uptime() {
            head.see(time);
            head.see_process(cursor.process(), false);
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

/// The text of the program's own message: after the head, klog's place in the source, the name of an etcd package and the key
/// of a structured entry, without an opening quote.
pub(crate) fn message(line: &[u8]) -> &[u8] {
    const KEYS: [&[u8]; 5] = [b" msg=\"", b" msg=", b"\"msg\":\"", b"\"message\":\"", b"\"MESSAGE\":\""];
    let mut outer = head(line);
    if outer.time.is_none() && outer.process.is_none() {
        // The name of a program without a time before it.
        let mut cursor = Cursor { rest: outer.message };
        if cursor.process().is_some() {
            outer = head(cursor.rest);
        }
    }
    let text = outer.message.trim_ascii_start();
    // systemd's status on a console.
    let text = text.strip_prefix(b"[  OK  ] ").unwrap_or(text);
    let text =
        if outer.begins { klog_message(text).or_else(|| etcd_message(text)).unwrap_or(text) } else { text };
    let window = &text[..text.len().min(KEY_WINDOW)];
    let keyed = || KEYS.iter().find_map(|key| Some(memchr::memmem::find(window, key)? + key.len()));
    let is_keyed = text.starts_with(b"{") || text.starts_with(b"time=") || text.starts_with(b"level=");
    let text = if is_keyed { keyed().map_or(text, |at| &text[at..]) } else { text };
    text.strip_prefix(b"\"").unwrap_or(text)
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

/// The time a message tells of itself: `Cloud-init v. 24.1 finished at Thu, 01 Jan 2026 00:01:00 +0000. …`.
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

/// The last time of the journal, from the line with which older `journalctl` begins: the only place that tells a year.
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
        // The outermost full time wins: it is written by one clock for all programs of the machine.
        match self.time {
            Some(Time::Full(_)) => {}
            _ if matches!(time, Time::Uptime(_)) && self.time.is_some() => {}
            _ => self.time = Some(time),
        }
    }

    /// `syslog` marks a syslog head, where the name is always a program's.
    fn see_process(&mut self, process: Option<(&'a str, Option<&'a str>)>, syslog: bool) {
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

    /// Bullets, brackets and tags that tools put before a time: `* `, `[CLOUDINIT]`, `+++ [`. Tells whether the time is
    /// bracketed: then a tool wrote it before the lines of another program.
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

    /// Reads `hh:mm:ss` and an optional fraction; returns how many bytes that took.
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

    /// `Jan  2 03:04:05`, as syslog and `journalctl` write it; a weekday may stand before and a year after it. Chinese
    /// and Japanese locales write `1月  2`.
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
        // `[Fri Jan  2 03:04:05 2026]`, as `dmesg -T` writes it.
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

    /// The month a text begins with, and how many bytes it takes.
    fn month(text: &[u8]) -> Option<(i8, usize)> {
        const MONTHS: [&[u8]; 12] =
            [b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec"];
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

    /// `[   12.345678] `, as the kernel writes it.
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
        let end = dot + 1 + fraction;
        if inner.get(end) != Some(&b']') {
            return None;
        }
        self.rest = &inner[end + 1..];
        Some(Time::Uptime(seconds * 1_000_000 + micros))
    }

    /// The `stderr F ` of a container log.
    fn container_stream(&mut self) -> bool {
        for mark in [&b" stderr F "[..], b" stdout F ", b" stderr P ", b" stdout P "] {
            if let Some(rest) = self.rest.strip_prefix(mark) {
                self.rest = rest;
                return true;
            }
        }
        false
    }

    /// `host program[12]: `; the host is skipped.
    fn host_and_process(&mut self) -> Option<(&'a str, Option<&'a str>)> {
        self.skip_spaces();
        let before = self.rest;
        let host = self.rest.iter().take_while(|byte| !byte.is_ascii_whitespace()).count();
        let next = self.rest.get(host + 1..)?;
        self.rest = next;
        let process = self.process();
        if process.is_none() {
            self.rest = before;
            return self.process();
        }
        process
    }

    /// `program[12]: ` or `program: `
    fn process(&mut self) -> Option<(&'a str, Option<&'a str>)> {
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

    /// Times and levels written as `time="…" level=…` or as JSON members.
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
