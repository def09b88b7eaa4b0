//! Format detection by the first bytes of a stream; file names are unreliable.

use super::utf16::ByteOrder;

/// Bytes inspected. A tar header is 512 bytes; the rest helps to distinguish text from binary data.
pub(super) const HEAD: usize = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Text,
    Utf16(ByteOrder),
    Journal,
    JournalExport,
    JournalJson,
    /// Windows event log.
    EventLog,
    Gzip,
    Zstd,
    Xz,
    Tar,
    Zip,
    /// A format without lines.
    Other(&'static str),
}

// === impl Format ===

impl Format {
    pub(super) fn of(head: &[u8]) -> Self {
        const MAGIC: [(&[u8], Format); 10] = [
            (b"LPKSHHRH", Format::Journal),
            (b"\x1f\x8b", Format::Gzip),
            (b"\x28\xb5\x2f\xfd", Format::Zstd),
            (b"\xfd7zXZ\0", Format::Xz),
            (b"PK\x03\x04", Format::Zip),
            (b"PK\x05\x06", Format::Zip),
            (b"__CURSOR=", Format::JournalExport),
            (b"\x7fELF", Format::Other("a program")),
            (b"ElfFile\0", Format::EventLog),
            (b"BZh", Format::Other("bzip2 data")),
        ];
        if let Some((_, format)) = MAGIC.iter().find(|(magic, _)| head.starts_with(magic)) {
            return *format;
        }
        if head.get(257..262) == Some(b"ustar") {
            return Self::Tar;
        }
        if let Some(order) = ByteOrder::of(head) {
            return Self::Utf16(order);
        }
        let first_line = head.split(|byte| *byte == b'\n').next().unwrap_or_default();
        if first_line.starts_with(b"{")
            && memchr::memmem::find(first_line, b"\"__REALTIME_TIMESTAMP\"").is_some()
        {
            return Self::JournalJson;
        }
        // Logs of a machine that lost power contain runs of NUL bytes: only mostly-NUL data is rejected.
        let zeros = head.iter().filter(|byte| **byte == 0).count();
        if zeros * 2 > head.len() { Self::Other("binary data") } else { Self::Text }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_decides() {
        let mut tar = [0; 512];
        tar[257..262].copy_from_slice(b"ustar");
        for (head, expected) in [
            (&b""[..], Format::Text),
            (b"Jan 02 03:04:05 n1 kubelet[1]: hello", Format::Text),
            (b"\x1f\x8b\x08\0", Format::Gzip),
            (b"LPKSHHRH\0\0", Format::Journal),
            (b"__CURSOR=s=1;i=2\n__REALTIME_TIMESTAMP=1\n", Format::JournalExport),
            (b"{ \"__REALTIME_TIMESTAMP\" : \"1\", \"MESSAGE\" : \"x\" }\n", Format::JournalJson),
            (b"{\"level\":\"info\"}\n", Format::Text),
            (b"a\0b\0\n", Format::Text),
            (b"ElfFile\0\0\0", Format::EventLog),
            (b"\xff\xfeh\0e\0l\0l\0o\0\n\0", Format::Utf16(ByteOrder::Little)),
            (b"\xff\xfe\x80 garbage \0\0\0\n", Format::Text),
            (b"\0\0\0\0\0\0a", Format::Other("binary data")),
            (&tar, Format::Tar),
        ] {
            assert_eq!(Format::of(head), expected, "{head:?}");
        }
    }
}
