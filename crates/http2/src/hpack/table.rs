//! The tables for indexes in header blocks: 61 static fields, then previously sent ones, newest first.

use std::collections::VecDeque;

use super::{Field, HpackError};

/// The size unless SETTINGS change it, which they never do here.
pub(super) const DEFAULT_SIZE: u32 = 4096;

/// RFC 7541, appendix A.
#[rustfmt::skip]
pub(super) const STATIC: [(&str, &str); 61] = [
    (":authority", ""), (":method", "GET"), (":method", "POST"), (":path", "/"), (":path", "/index.html"),
    (":scheme", "http"), (":scheme", "https"), (":status", "200"), (":status", "204"), (":status", "206"),
    (":status", "304"), (":status", "400"), (":status", "404"), (":status", "500"), ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"), ("accept-language", ""), ("accept-ranges", ""), ("accept", ""),
    ("access-control-allow-origin", ""), ("age", ""), ("allow", ""), ("authorization", ""), ("cache-control", ""),
    ("content-disposition", ""), ("content-encoding", ""), ("content-language", ""), ("content-length", ""),
    ("content-location", ""), ("content-range", ""), ("content-type", ""), ("cookie", ""), ("date", ""),
    ("etag", ""), ("expect", ""), ("expires", ""), ("from", ""), ("host", ""), ("if-match", ""),
    ("if-modified-since", ""), ("if-none-match", ""), ("if-range", ""), ("if-unmodified-since", ""),
    ("last-modified", ""), ("link", ""), ("location", ""), ("max-forwards", ""), ("proxy-authenticate", ""),
    ("proxy-authorization", ""), ("range", ""), ("referer", ""), ("refresh", ""), ("retry-after", ""),
    ("server", ""), ("set-cookie", ""), ("strict-transport-security", ""), ("transfer-encoding", ""),
    ("user-agent", ""), ("vary", ""), ("via", ""), ("www-authenticate", ""),
];

/// The dynamic table: fields that the peer sent before.
#[derive(Debug)]
pub(super) struct Table {
    entries: VecDeque<Field>,
    size: usize,
    limit: usize,
}

// === impl Table ===

impl Table {
    pub(super) fn new() -> Self {
        Self { entries: VecDeque::new(), size: 0, limit: DEFAULT_SIZE as usize }
    }

    /// Returns the field for an index; 0 is invalid.
    pub(super) fn get(&self, index: usize) -> Result<Field, HpackError> {
        if let Some((name, value)) = index.checked_sub(1).and_then(|at| STATIC.get(at)) {
            return Ok(Field { name: name.as_bytes().to_vec(), value: value.as_bytes().to_vec() });
        }
        let at = index.checked_sub(STATIC.len() + 1).ok_or(HpackError::Index)?;
        self.entries.get(at).cloned().ok_or(HpackError::Index)
    }

    pub(super) fn insert(&mut self, field: Field) {
        let size = field.size();
        self.evict(self.limit.saturating_sub(size));
        // A field larger than the complete table empties it and is not kept; that is not an error (RFC 7541, 4.4).
        if size <= self.limit {
            self.size += size;
            self.entries.push_front(field);
        }
    }

    pub(super) fn resize(&mut self, limit: usize) -> Result<(), HpackError> {
        if limit > DEFAULT_SIZE as usize {
            return Err(HpackError::TableSize);
        }
        self.limit = limit;
        self.evict(limit);
        Ok(())
    }

    fn evict(&mut self, until: usize) {
        while self.size > until {
            let Some(oldest) = self.entries.pop_back() else { break };
            self.size -= oldest.size();
        }
    }
}
