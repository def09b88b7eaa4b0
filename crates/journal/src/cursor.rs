use std::fmt;
use std::str::FromStr;

use crate::Id128;

/// The position of an entry: the address that journald assigns, printed as `__CURSOR`.
///
/// An entry has the same cursor in every file that contains a copy of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cursor {
    /// The sequence of the number; all files of one rotation share it.
    pub seqnum_id: Id128,
    pub seqnum: u64,
    pub boot_id: Id128,
    /// Microseconds since that boot.
    pub monotonic: u64,
    /// Microseconds since 1970.
    pub realtime: u64,
    /// Hash of the contents: the XOR of every field's hash.
    pub xor_hash: u64,
}

/// An invalid journal cursor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a journal cursor: expected `s=…;i=…;b=…;m=…;t=…;x=…`")]
pub struct BadCursor;

// === impl Cursor ===

impl Cursor {
    pub(crate) fn push_to(&self, out: &mut Vec<u8>) {
        self.push_with(out, &self.seqnum_id.digits(), &self.boot_id.digits());
    }

    /// Appends the cursor, for writers of many entries that have cached the digits of both IDs.
    pub(crate) fn push_with(&self, out: &mut Vec<u8>, seqnum_id: &[u8; 32], boot_id: &[u8; 32]) {
        out.extend_from_slice(b"s=");
        out.extend_from_slice(seqnum_id);
        out.extend_from_slice(b";i=");
        push_hex(out, self.seqnum);
        out.extend_from_slice(b";b=");
        out.extend_from_slice(boot_id);
        out.extend_from_slice(b";m=");
        push_hex(out, self.monotonic);
        out.extend_from_slice(b";t=");
        push_hex(out, self.realtime);
        out.extend_from_slice(b";x=");
        push_hex(out, self.xor_hash);
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seqnum_id, seqnum, boot_id, monotonic, realtime, xor_hash } = self;
        write!(f, "s={seqnum_id};i={seqnum:x};b={boot_id};m={monotonic:x};t={realtime:x};x={xor_hash:x}")
    }
}

impl FromStr for Cursor {
    type Err = BadCursor;

    fn from_str(text: &str) -> Result<Self, BadCursor> {
        let (mut seqnum_id, mut boot_id) = (None, None);
        let (mut seqnum, mut monotonic, mut realtime, mut xor_hash) = (None, None, None, None);
        for part in text.split(';') {
            let (key, value) = part.split_once('=').ok_or(BadCursor)?;
            let number = || u64::from_str_radix(value, 16).map_err(|_| BadCursor);
            let id = || value.parse().map_err(|_| BadCursor);
            match key {
                "s" => seqnum_id = Some(id()?),
                "i" => seqnum = Some(number()?),
                "b" => boot_id = Some(id()?),
                "m" => monotonic = Some(number()?),
                "t" => realtime = Some(number()?),
                "x" => xor_hash = Some(number()?),
                // Later versions may add parts, which are not needed to find an entry.
                _ => {}
            }
        }
        Ok(Self {
            seqnum_id: seqnum_id.ok_or(BadCursor)?,
            seqnum: seqnum.ok_or(BadCursor)?,
            boot_id: boot_id.ok_or(BadCursor)?,
            monotonic: monotonic.ok_or(BadCursor)?,
            realtime: realtime.ok_or(BadCursor)?,
            xor_hash: xor_hash.ok_or(BadCursor)?,
        })
    }
}

pub(crate) fn push_hex(out: &mut Vec<u8>, number: u64) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut digits = [0; 16];
    for (digit, byte) in digits.as_chunks_mut::<2>().0.iter_mut().zip(number.to_be_bytes()) {
        *digit = [DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]];
    }
    let zeros = (number.leading_zeros() as usize / 4).min(15);
    out.extend_from_slice(&digits[zeros..]);
}

pub(crate) fn push_decimal(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "s=0639d72e6d524c7ea9e8b4a3fb8a4f3c;i=2a;b=5c1c1bd8d7a24a4b8ee0c1a6d1f1f7aa;m=0;t=5f1;x=ffffffffffffffff";

    #[test]
    fn a_cursor_survives_a_round_trip_through_both_writers() {
        let cursor: Cursor = TEXT.parse().unwrap();
        assert_eq!((cursor.seqnum, cursor.monotonic, cursor.xor_hash), (42, 0, u64::MAX));
        assert_eq!(cursor.to_string(), TEXT);
        let mut bytes = Vec::new();
        cursor.push_to(&mut bytes);
        assert_eq!(bytes, TEXT.as_bytes());
    }

    #[test]
    fn an_incomplete_or_malformed_cursor_is_refused() {
        for text in ["", "s", "i=2a", "s=zz;i=1;b=0;m=0;t=0;x=0", &TEXT.replace("x=", "y=")] {
            assert_eq!(text.parse::<Cursor>(), Err(BadCursor), "{text}");
        }
    }

    #[test]
    fn numbers_are_written_like_the_standard_formatter_does() {
        for number in [0, 1, 9, 10, 15, 16, 255, 1 << 33, u64::MAX] {
            let mut out = Vec::new();
            push_hex(&mut out, number);
            out.push(b' ');
            push_decimal(&mut out, number);
            assert_eq!(String::from_utf8(out).unwrap(), format!("{number:x} {number}"));
        }
    }
}
