use crate::cursor::{Cursor, push_decimal};
use crate::export;
use crate::field::{Field, is_name, is_text};

/// Maximum size of a field in a stream, the same as for files.
pub(crate) const MAX_VALUE: usize = 64 * 1024 * 1024;

/// Maximum size of all fields of an entry; a stream without empty lines must not exhaust memory.
pub(crate) const MAX_BYTES: usize = 2 * MAX_VALUE;

/// Maximum number of fields, the same as for an entry of a file.
const MAX_FIELDS: usize = 8192;

/// An entry from an export or JSON stream. Readers reuse it.
#[derive(Clone, Debug, Default)]
pub struct Record {
    /// The concatenated fields, each as `NAME=value`.
    bytes: Vec<u8>,
    spans: Vec<Span>,
    cursor: Option<Cursor>,
    realtime: Option<u64>,
    monotonic: Option<u64>,
    left_out: usize,
}

#[derive(Clone, Copy, Debug)]
struct Span {
    start: usize,
    end: usize,
    name: usize,
}

// === impl Record ===

impl Record {
    /// Returns its address, if the stream contains it.
    pub fn cursor(&self) -> Option<Cursor> {
        self.cursor
    }

    /// Returns the time in microseconds since 1970.
    pub fn realtime(&self) -> Option<u64> {
        self.realtime
    }

    /// Returns the time in microseconds since boot.
    pub fn monotonic(&self) -> Option<u64> {
        self.monotonic
    }

    pub fn fields(&self) -> impl Iterator<Item = Field<'_>> {
        self.spans.iter().map(|span| Field::new(&self.bytes[span.start..span.end], span.name))
    }

    /// Returns the value of the first field with this name.
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.fields().find(|field| field.name_bytes() == name.as_bytes()).map(|field| field.value())
    }

    /// Returns the number of fields that are in the stream but incomplete: journalctl writes `null` for long ones, and
    /// invalid ones are dropped.
    pub fn left_out(&self) -> usize {
        self.left_out
    }

    /// Appends the entry in export format. An entry from journalctl gets the same bytes again.
    pub fn write_export(&self, out: &mut Vec<u8>) {
        if let Some(cursor) = &self.cursor {
            out.extend_from_slice(b"__CURSOR=");
            cursor.push_to(out);
            out.push(b'\n');
        }
        for (name, time) in
            [("__REALTIME_TIMESTAMP=", self.realtime), ("__MONOTONIC_TIMESTAMP=", self.monotonic)]
        {
            if let Some(time) = time {
                out.extend_from_slice(name.as_bytes());
                push_decimal(out, time);
                out.push(b'\n');
            }
        }
        for field in self.fields() {
            if is_text(field.bytes()) {
                out.extend_from_slice(field.bytes());
                out.push(b'\n');
            } else {
                export::push_binary(out, field);
            }
        }
        out.push(b'\n');
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        // A huge entry must not occupy memory for the rest of the stream.
        self.bytes.shrink_to(1024 * 1024);
        self.spans.clear();
        (self.cursor, self.realtime, self.monotonic, self.left_out) = (None, None, None, 0);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.spans.is_empty() && self.realtime.is_none() && self.cursor.is_none()
    }

    /// Adds a field, or a part of the entry's address.
    pub(crate) fn push(&mut self, name: &[u8], value: &[u8]) {
        if name.starts_with(b"__") {
            self.push_address(name, value);
            return;
        }
        let room = MAX_BYTES.saturating_sub(self.bytes.len());
        let size = name.len() + 1 + value.len();
        if !is_name(name) || value.len() > MAX_VALUE || size > room || self.spans.len() == MAX_FIELDS {
            self.leave_out();
            return;
        }
        let start = self.bytes.len();
        self.bytes.extend_from_slice(name);
        self.bytes.push(b'=');
        self.bytes.extend_from_slice(value);
        self.spans.push(Span { start, end: self.bytes.len(), name: name.len() });
    }

    pub(crate) fn leave_out(&mut self) {
        self.left_out += 1;
    }

    fn push_address(&mut self, name: &[u8], value: &[u8]) {
        let Ok(text) = std::str::from_utf8(value) else { return };
        match name {
            b"__CURSOR" => self.cursor = text.parse().ok(),
            b"__REALTIME_TIMESTAMP" => self.realtime = text.parse().ok(),
            b"__MONOTONIC_TIMESTAMP" => self.monotonic = text.parse().ok(),
            // The cursor contains sequence numbers; other such names are not fields.
            _ => {}
        }
    }
}
