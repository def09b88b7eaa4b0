//! Header blocks (RFC 7541) without a table of earlier ones: we announce that ours has no room, and refer to nothing.

use crate::{CriError, huffman};

/// All header fields of one answer.
const MAX_FIELDS: usize = 64 << 10;

/// Larger integers describe nothing that would be accepted.
const MAX_INTEGER: usize = 1 << 24;

/// Fields with an index of their own (RFC 7541, appendix A).
const STATIC_FIELDS: usize = 61;

/// What an answer's header fields tell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fields {
    /// HTTP's own status; anything but 200 is no gRPC.
    pub(crate) http_status: Option<u32>,
    pub(crate) grpc_status: Option<u32>,
    pub(crate) grpc_message: String,
}

struct Reader<'a> {
    bytes: &'a [u8],
}

/// A name that a field is told by: its own, or a number we know or do not need.
enum Name {
    Status,
    Text(Vec<u8>),
    Other,
}

/// The header block of a request.
pub(crate) fn encode(path: &str) -> Vec<u8> {
    // `:method: POST` and `:scheme: http` have indices of their own.
    let mut block = vec![0x83, 0x86];
    // `:path` and `:authority` have names with an index.
    block.push(0x04);
    push_string(&mut block, path);
    block.push(0x01);
    push_string(&mut block, "localhost");
    for (name, value) in
        [("content-type", "application/grpc"), ("te", "trailers"), ("user-agent", "landfall")]
    {
        block.push(0);
        push_string(&mut block, name);
        push_string(&mut block, value);
    }
    block
}

fn push_string(block: &mut Vec<u8>, text: &str) {
    // Ours are shorter than the 127 bytes at which lengths take a second byte.
    block.push(u8::try_from(text.len()).unwrap_or(0x7e));
    block.extend_from_slice(text.as_bytes());
}

// === impl Fields ===

impl Fields {
    /// Adds what a header block tells.
    pub(crate) fn read(&mut self, block: &[u8]) -> Result<(), CriError> {
        let mut reader = Reader { bytes: block };
        let mut left = MAX_FIELDS;
        while let Some(first) = reader.bytes.first().copied() {
            let (name, value) = if first & 0x80 != 0 {
                let index = reader.integer(7)?;
                // 8 to 14 are whole fields: statuses.
                let status = [200, 204, 206, 304, 400, 404, 500];
                let known = index.checked_sub(8).and_then(|at| status.get(at)).copied();
                self.http_status = known.or(self.http_status);
                name_of(index)?;
                continue;
            } else if first & 0xe0 == 0x20 {
                // The size of the table we said we have no room for.
                reader.integer(5)?;
                continue;
            } else {
                let prefix = if first & 0x40 != 0 { 6 } else { 4 };
                let name = match reader.integer(prefix)? {
                    0 => Name::Text(reader.string(left)?),
                    index => name_of(index)?,
                };
                (name, reader.string(left)?)
            };
            let name_len = if let Name::Text(name) = &name { name.len() } else { 0 };
            left = left.checked_sub(name_len + value.len() + 1).ok_or(TOO_LONG)?;
            self.take(&name, &value);
        }
        Ok(())
    }

    fn take(&mut self, name: &Name, value: &[u8]) {
        let number = || std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
        match name {
            Name::Status => self.http_status = number(),
            Name::Text(name) if name == b":status" => self.http_status = number(),
            Name::Text(name) if name == b"grpc-status" => self.grpc_status = number(),
            Name::Text(name) if name == b"grpc-message" => self.grpc_message = percent_decoded(value),
            Name::Text(_) | Name::Other => {}
        }
    }
}

const TOO_LONG: CriError = CriError::Malformed { what: "header fields that are too long" };

fn name_of(index: usize) -> Result<Name, CriError> {
    match index {
        8..=14 => Ok(Name::Status),
        1..=STATIC_FIELDS => Ok(Name::Other),
        _ => Err(CriError::Malformed { what: "a header that refers to an earlier one" }),
    }
}

/// gRPC writes what is not plain text as `%XX`.
fn percent_decoded(value: &[u8]) -> String {
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value;
    while let Some((first, tail)) = rest.split_first() {
        let hex =
            tail.get(..2).filter(|_| *first == b'%').and_then(|digits| std::str::from_utf8(digits).ok());
        if let Some(byte) = hex.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            bytes.push(byte);
            rest = &tail[2..];
        } else {
            bytes.push(*first);
            rest = tail;
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

// === impl Reader ===

impl Reader<'_> {
    fn byte(&mut self) -> Result<u8, CriError> {
        let (first, rest) =
            self.bytes.split_first().ok_or(CriError::Malformed { what: "a header that is cut" })?;
        self.bytes = rest;
        Ok(*first)
    }

    fn integer(&mut self, prefix: u32) -> Result<usize, CriError> {
        let mask = (1_usize << prefix) - 1;
        let mut value = usize::from(self.byte()?) & mask;
        if value < mask {
            return Ok(value);
        }
        // Zeros could follow for ever without the value growing.
        for shift in [0, 7, 14, 21] {
            let byte = self.byte()?;
            value += usize::from(byte & 0x7f) << shift;
            if value > MAX_INTEGER {
                break;
            }
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(CriError::Malformed { what: "a number in a header that is too large" })
    }

    fn string(&mut self, limit: usize) -> Result<Vec<u8>, CriError> {
        let coded = self.bytes.first().is_some_and(|first| first & 0x80 != 0);
        let length = self.integer(7)?;
        let (text, rest) = self
            .bytes
            .split_at_checked(length)
            .ok_or(CriError::Malformed { what: "a header that is cut" })?;
        self.bytes = rest;
        if coded {
            huffman::decode(text, limit)
        } else if text.len() > limit {
            Err(TOO_LONG)
        } else {
            Ok(text.to_vec())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_in_each_form() {
        let mut fields = Fields::default();
        // A table without room, `:status: 200` by its index, and a type nobody needs.
        fields.read(b"\x20\x88\x5f\x10application/grpc").unwrap();
        assert_eq!(fields.http_status, Some(200));
        // Trailers: a plain number, and a message with a percent sign.
        fields.read(b"\x40\x0bgrpc-status\x0212\x00\x0cgrpc-message\x0bunknown%20x").unwrap();
        assert_eq!((fields.grpc_status, fields.grpc_message.as_str()), (Some(12), "unknown x"));
        // A status by the name's index.
        fields.read(b"\x08\x03503").unwrap();
        assert_eq!(fields.http_status, Some(503));
    }

    #[test]
    fn hostile_blocks_are_refused() {
        for block in [&b"\xbe"[..], b"\xff\xff\xff\xff\xff", b"\x80", b"\x00", b"\x00\x05ab", b"\x7f\xff\xff"]
        {
            assert!(Fields::default().read(block).is_err(), "{block:?}");
        }
        let long = [&b"\x00\x01a\x7f\x80\x80\x04"[..], &vec![b'x'; 1 << 17]].concat();
        assert!(Fields::default().read(&long).is_err());
    }
}
