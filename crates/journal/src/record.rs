use crate::cursor::{Cursor, push_decimal};
use crate::export;
use crate::field::{Field, is_name, is_text};

/// No field is longer than this in a stream; the same bound as for files.
pub(crate) const MAX_VALUE: usize = 64 * 1024 * 1024;

/// All fields of an entry together; a stream that goes on without an empty line must not fill the memory.
pub(crate) const MAX_BYTES: usize = 2 * MAX_VALUE;

/// As many fields as an entry of a file can have.
const MAX_FIELDS: usize = 8192;

/// An entry read from an export or JSON stream. Readers reuse it.
#[derive(Clone, Debug, Default)]
pub struct Record {
    /// The fields one after the other, each as `NAME=value`.
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
    /// Its address, if the stream gives it.
    pub fn cursor(&self) -> Option<Cursor> {
        self.cursor
    }

    /// Microseconds since 1970.
    pub fn realtime(&self) -> Option<u64> {
        self.realtime
    }

    /// Microseconds since boot.
    pub fn monotonic(&self) -> Option<u64> {
        self.monotonic
    }

    pub fn fields(&self) -> impl Iterator<Item = Field<'_>> {
        self.spans.iter().map(|span| Field::new(&self.bytes[span.start..span.end], span.name))
    }

    /// The value of the first field with this name.
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.fields().find(|field| field.name_bytes() == name.as_bytes()).map(|field| field.value())
    }

    /// How many fields the stream names but does not have in full: journalctl writes `null` for long ones, and
    /// invalid ones are dropped.
    pub fn left_out(&self) -> usize {
        self.left_out
    }

    /// Appends the entry in export format. For an entry that came from journalctl that gives the same bytes again.
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
        // One huge entry must not stay in memory for the rest of the stream.
        self.bytes.shrink_to(1024 * 1024);
        self.spans.clear();
        (self.cursor, self.realtime, self.monotonic, self.left_out) = (None, None, None, 0);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.spans.is_empty() && self.realtime.is_none() && self.cursor.is_none()
    }

    /// Takes a field, or what the stream says about the entry itself.
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
            // Sequence numbers are in the cursor; what else may come is not for fields.
            _ => {}
        }
    }
}
