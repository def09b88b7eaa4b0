//! UTF-16 text, as written by Windows programs.

use std::io::{self, Read};

/// Bytes inspected for detection.
const SAMPLE: usize = 1024;
/// Without a byte order mark, fewer characters are not sufficient for detection.
const MIN_UNMARKED: usize = 16;
const BUFFER: usize = 16 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByteOrder {
    Little,
    Big,
}

/// The text converted to UTF-8. Invalid characters become replacement characters.
#[derive(Debug)]
pub struct Utf16Text<R> {
    reader: R,
    order: ByteOrder,
    /// First byte of an incomplete pair.
    odd: Option<u8>,
    /// First half of a surrogate pair.
    half: Option<u16>,
    text: String,
    given: usize,
    ended: bool,
}

// === impl ByteOrder ===

impl ByteOrder {
    /// Detects UTF-16 text and its byte order.
    ///
    /// A byte order mark is not sufficient: logs may start with any bytes.
    pub fn of(head: &[u8]) -> Option<Self> {
        let head = &head[..head.len().min(SAMPLE)];
        [Self::Little, Self::Big].into_iter().find(|order| {
            let units: Vec<u16> = head.as_chunks().0.iter().map(|pair| order.unit(*pair)).collect();
            let plain = units.iter().filter(|unit| matches!(unit, 9 | 10 | 13 | 32..=126)).count();
            let is_marked = units.first() == Some(&0xfeff);
            // Programs in any language log mostly ASCII letters, digits and spaces.
            is_marked && plain * 4 >= units.len().max(4)
                || units.len() >= MIN_UNMARKED && plain * 10 >= units.len() * 9
        })
    }

    fn unit(self, pair: [u8; 2]) -> u16 {
        match self {
            Self::Little => u16::from_le_bytes(pair),
            Self::Big => u16::from_be_bytes(pair),
        }
    }
}

// === impl Utf16Text ===

impl<R: Read> Utf16Text<R> {
    pub fn new(reader: R, order: ByteOrder) -> Self {
        Self { reader, order, odd: None, half: None, text: String::new(), given: 0, ended: false }
    }

    fn refill(&mut self) -> io::Result<()> {
        self.text.clear();
        self.given = 0;
        let mut buffer = [0; BUFFER];
        let count = self.reader.read(&mut buffer)?;
        for byte in &buffer[..count] {
            match self.odd.take() {
                None => self.odd = Some(*byte),
                Some(first) => self.take(self.order.unit([first, *byte])),
            }
        }
        if count == 0 {
            self.ended = true;
            if self.half.take().is_some() || self.odd.take().is_some() {
                self.text.push(char::REPLACEMENT_CHARACTER);
            }
        }
        Ok(())
    }

    fn take(&mut self, unit: u16) {
        let pair = self.half.take().map(|half| [half, unit]);
        if let Some(pair) = pair {
            if let Some(Ok(c)) = char::decode_utf16(pair).next() {
                self.text.push(c);
                return;
            }
            self.text.push(char::REPLACEMENT_CHARACTER);
        }
        match unit {
            0xd800..=0xdbff => self.half = Some(unit),
            // The byte order mark, at the start or in the middle of concatenated files.
            0xfeff => {}
            _ => self.text.push(char::from_u32(u32::from(unit)).unwrap_or(char::REPLACEMENT_CHARACTER)),
        }
    }
}

impl<R: Read> Read for Utf16Text<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while self.given == self.text.len() && !self.ended {
            self.refill()?;
        }
        let rest = &self.text.as_bytes()[self.given..];
        let count = out.len().min(rest.len());
        out[..count].copy_from_slice(&rest[..count]);
        self.given += count;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &str, order: ByteOrder) -> Vec<u8> {
        let bytes = |unit: u16| match order {
            ByteOrder::Little => unit.to_le_bytes(),
            ByteOrder::Big => unit.to_be_bytes(),
        };
        text.encode_utf16().flat_map(bytes).collect()
    }

    fn read(bytes: &[u8]) -> Option<String> {
        let mut text = String::new();
        Utf16Text::new(bytes, ByteOrder::of(bytes)?).read_to_string(&mut text).unwrap();
        Some(text)
    }

    #[test]
    fn text_is_told_and_read_in_both_orders() {
        for order in [ByteOrder::Little, ByteOrder::Big] {
            let marked = "\u{feff}Starting kubelet\r\nfailed: größer 🚀\r\n";
            assert_eq!(read(&bytes(marked, order)).as_deref(), Some(&marked[3..]));
            let unmarked = "Starting kubelet\r\nfailed\r\n";
            assert_eq!(read(&bytes(unmarked, order)).as_deref(), Some(unmarked));
        }
    }

    #[test]
    fn other_bytes_are_left_alone() {
        for other in [
            &b""[..],
            b"\xff\xfe",
            b"plain text of some length, as logs have it\n",
            &[0; 64],
            b"\xff\xfe\x80 garbage \0\0\0\n",
        ] {
            assert_eq!(ByteOrder::of(other), None, "{other:?}");
        }
    }

    #[test]
    fn broken_characters_become_marks() {
        let mut broken = bytes("\u{feff}abcdefgh", ByteOrder::Little);
        broken.extend([0x00, 0xd8, b'x', 0, 0x00, 0xdc, b'!']);
        assert_eq!(read(&broken).as_deref(), Some("abcdefgh\u{fffd}x\u{fffd}\u{fffd}"));
    }
}
