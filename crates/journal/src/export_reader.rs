//! Reader for the export format (`journalctl --output=export`, `systemd-journal-gatewayd`, landfall bundles).

use std::io::{self, BufRead, Read};

use crate::field::MAX_NAME;
use crate::record::{MAX_VALUE, Record};

/// Maximum length of a line of text: a name, the `=`, and the longest value.
const MAX_LINE: usize = MAX_NAME + 1 + MAX_VALUE;

/// Maximum length of a field in journald; a greater length is damage.
const MAX_FIELD: usize = 768 * 1024 * 1024;

/// An iterator over the entries of an export stream, in bounded memory.
///
/// A stream may be truncated or garbled. An invalid field is left out of its entry. If the stream cannot be parsed,
/// reading continues after the next empty line.
#[derive(Debug)]
pub struct ExportReader<R> {
    input: R,
    line: Vec<u8>,
    record: Record,
    skipped: u64,
}

enum Line {
    End,
    /// A complete line in `line`, without the line feed.
    Whole,
    TooLong,
}

// === impl ExportReader ===

impl<R: BufRead> ExportReader<R> {
    pub fn new(input: R) -> Self {
        Self { input, line: Vec::new(), record: Record::default(), skipped: 0 }
    }

    /// Returns how many times reading had to skip to the next empty line.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// Returns the next entry; `None` at the end.
    #[expect(
        clippy::should_implement_trait,
        reason = "the entry borrows the reader, which Iterator cannot express"
    )]
    pub fn next(&mut self) -> io::Result<Option<&Record>> {
        self.record.clear();
        loop {
            match self.read_line()? {
                Line::End => break,
                // The entry omits this field: the fields after it are complete.
                Line::TooLong => {}
                Line::Whole if self.line.is_empty() => {
                    if !self.record.is_empty() {
                        break;
                    }
                }
                Line::Whole => self.take_line()?,
            }
        }
        Ok((!self.record.is_empty()).then_some(&self.record))
    }

    fn take_line(&mut self) -> io::Result<()> {
        if let Some(sign) = memchr::memchr(b'=', &self.line) {
            let (name, value) = self.line.split_at(sign);
            self.record.push(name, &value[1..]);
            return Ok(());
        }
        // A line with only a name: eight bytes of length, the value and a line feed follow.
        let mut length = [0; 8];
        if self.line.len() > MAX_NAME || !self.read_whole(&mut length)? {
            return self.resynchronize();
        }
        let length = usize::try_from(u64::from_le_bytes(length)).unwrap_or(usize::MAX);
        if length > MAX_FIELD {
            return self.resynchronize();
        }
        let mut value = Vec::new();
        let mut input = self.input.by_ref().take(length as u64);
        // The entry omits a field that is too long. Its value may look like further entries, so exactly its length is
        // skipped.
        let is_too_long = length > MAX_VALUE;
        let n = if is_too_long {
            io::copy(&mut input, &mut io::sink())?
        } else {
            input.read_to_end(&mut value)? as u64
        };
        let mut end = [0; 1];
        if n < length as u64 || !self.read_whole(&mut end)? || end != *b"\n" {
            return self.resynchronize();
        }
        if !is_too_long {
            self.record.push(&self.line, &value);
        }
        Ok(())
    }

    /// Discards the entry and continues after the next empty line.
    fn resynchronize(&mut self) -> io::Result<()> {
        self.skipped += 1;
        self.record.clear();
        loop {
            match self.read_line()? {
                Line::End => return Ok(()),
                Line::Whole if self.line.is_empty() => return Ok(()),
                Line::Whole | Line::TooLong => {}
            }
        }
    }

    fn read_line(&mut self) -> io::Result<Line> {
        read_line(&mut self.input, &mut self.line, MAX_LINE)
    }

    /// Fills the buffer; returns `false` if the stream ends before.
    fn read_whole(&mut self, buffer: &mut [u8]) -> io::Result<bool> {
        match self.input.read_exact(buffer) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Reads up to a line feed. A line above the limit is skipped completely.
fn read_line(input: &mut impl BufRead, line: &mut Vec<u8>, limit: usize) -> io::Result<Line> {
    line.clear();
    line.shrink_to(1024 * 1024);
    input.by_ref().take(limit as u64 + 1).read_until(b'\n', line)?;
    if line.last() == Some(&b'\n') {
        line.pop();
        return Ok(Line::Whole);
    }
    if line.len() > limit {
        line.clear();
        input.skip_until(b'\n')?;
        return Ok(Line::TooLong);
    }
    Ok(if line.is_empty() { Line::End } else { Line::Whole })
}

/// Returns the next line for readers of other line formats; `None` at the end. Lines above the limit are counted and
/// skipped.
pub(crate) fn next_line(
    input: &mut impl BufRead,
    line: &mut Vec<u8>,
    limit: usize,
    skipped: &mut u64,
) -> io::Result<bool> {
    loop {
        match read_line(input, line, limit)? {
            Line::End => return Ok(false),
            Line::Whole => return Ok(true),
            Line::TooLong => *skipped += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(stream: &[u8]) -> (Vec<String>, u64) {
        let mut reader = ExportReader::new(stream);
        let mut entries = Vec::new();
        while let Some(record) = reader.next().unwrap() {
            let fields = record.fields().map(|field| format!("{field:?}")).collect::<Vec<_>>().join(" ");
            entries.push(format!("{}:{fields}", record.realtime().unwrap_or(0)));
        }
        (entries, reader.skipped())
    }

    fn binary(name: &str, value: &[u8]) -> Vec<u8> {
        [name.as_bytes(), b"\n", &(value.len() as u64).to_le_bytes(), value, b"\n"].concat()
    }

    #[test]
    fn streams_are_read() {
        let two_lines = [b"A=1\n".to_vec(), binary("B", b"x\ny"), b"\nC=2\n".to_vec()].concat();
        let cut = [b"A=1\n\nB=2\n".to_vec(), binary("C", b"long value")[..12].to_vec()].concat();
        let liar = [b"A\n\xff\xff\xff\xff\xff\xff\xff\xff rest\n\nB=2\n\n".to_vec()].concat();
        let cases: Vec<(&str, &[u8], &[&str], u64)> = vec![
            ("empty", b"", &[], 0),
            ("only empty lines", b"\n\n\n", &[], 0),
            ("one", b"__REALTIME_TIMESTAMP=7\nA=1\nB=a=b\n\n", &["7:A=\"1\" B=\"a=b\""], 0),
            ("no last empty line", b"A=1\n\nB=2", &["0:A=\"1\"", "0:B=\"2\""], 0),
            ("binary", &two_lines, &["0:A=\"1\" B=\"x\\ny\"", "0:C=\"2\""], 0),
            ("invalid name", b"a=1\nB=2\n\n", &["0:B=\"2\""], 0),
            ("unknown address", b"__SEQNUM=1\nB=2\n\n", &["0:B=\"2\""], 0),
            ("cut in a value", &cut, &["0:A=\"1\""], 1),
            ("impossible length", &liar, &["0:B=\"2\""], 1),
            ("empty value", b"A=\n\n", &["0:A=\"\""], 0),
        ];
        for (what, stream, entries, skipped) in cases {
            assert_eq!(read(stream), (entries.iter().map(ToString::to_string).collect(), skipped), "{what}");
        }
    }

    /// Tests a forged entry inside a long field: users control the content and length of a message.
    #[test]
    fn overlong_field_is_omitted_and_hides_no_entry() {
        let forged = b"\n\n__REALTIME_TIMESTAMP=9\n_TRANSPORT=kernel\nMESSAGE=forged\n\n";
        let mut value = vec![b'x'; MAX_VALUE + 1];
        value[..forged.len()].copy_from_slice(forged);
        let one_line = [&b"BIG="[..], &vec![b'x'; MAX_VALUE + MAX_NAME], b"\n"].concat();
        for big in [binary("BIG", &value), one_line] {
            let stream = [&b"A=1\n"[..], &big, &binary("MESSAGE", forged), b"B=2\n\nC=3\n\n"].concat();
            let (entries, skipped) = read(&stream);
            assert_eq!(entries.len(), 2, "{entries:?}");
            assert!(
                entries[0].starts_with("0:A=\"1\" MESSAGE=") && entries[0].ends_with("B=\"2\""),
                "{entries:?}"
            );
            assert_eq!((entries[1].as_str(), skipped), ("0:C=\"3\"", 0));
        }
    }

    #[test]
    fn an_entry_is_written_as_it_was_read() {
        let stream = [
            b"__CURSOR=s=0639d72e6d524c7ea9e8b4a3fb8a4f3c;i=1;b=5c1c1bd8d7a24a4b8ee0c1a6d1f1f7aa;m=3;t=4;x=5\n".to_vec(),
            b"__REALTIME_TIMESTAMP=4\n__MONOTONIC_TIMESTAMP=3\n_BOOT_ID=5c1c1bd8d7a24a4b8ee0c1a6d1f1f7aa\nA=1\n".to_vec(),
            binary("B", b"\0\xff\n"),
            b"\n".to_vec(),
        ]
        .concat();
        let mut reader = ExportReader::new(stream.as_slice());
        let mut written = Vec::new();
        reader.next().unwrap().unwrap().write_export(&mut written);
        assert_eq!(written, stream);
    }
}
