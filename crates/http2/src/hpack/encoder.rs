use bytes::{BufMut as _, BytesMut};

use super::Headers;
use super::table::STATIC;

/// An encoder for header blocks that never refers to earlier ones.
#[derive(Debug, Default)]
pub(crate) struct Encoder {
    /// Whether to announce an empty table, because the peer's is smaller than the default (RFC 7541, 4.2).
    announce_empty_table: bool,
}

// === impl Encoder ===

impl Encoder {
    pub(crate) fn peer_table_size(&mut self, size: u32) {
        self.announce_empty_table = size < super::table::DEFAULT_SIZE;
    }

    pub(crate) fn encode(&mut self, headers: &Headers, output: &mut BytesMut) {
        if std::mem::take(&mut self.announce_empty_table) {
            output.put_u8(0x20);
        }
        for field in headers.fields() {
            let same_name = STATIC.iter().position(|(name, _)| name.as_bytes() == field.name);
            let same = STATIC
                .iter()
                .position(|(name, value)| name.as_bytes() == field.name && value.as_bytes() == field.value);
            match (same, same_name) {
                (Some(index), _) => integer(output, 0x80, 7, index + 1),
                (None, Some(index)) => integer(output, prefix(field.name.as_slice()), 4, index + 1),
                (None, None) => {
                    output.put_u8(prefix(field.name.as_slice()));
                    string(output, &field.name);
                }
            }
            if same.is_none() {
                string(output, &field.value);
            }
        }
    }
}

/// Returns the field prefix. Credentials are "never indexed" for intermediate proxies; all other fields are "without
/// indexing".
fn prefix(name: &[u8]) -> u8 {
    if name == b"authorization" { 0x10 } else { 0 }
}

fn string(output: &mut BytesMut, text: &[u8]) {
    integer(output, 0, 7, text.len());
    output.put_slice(text);
}

#[expect(clippy::cast_possible_truncation, reason = "each value is masked to the bits it is cut to")]
fn integer(output: &mut BytesMut, flags: u8, prefix: u32, mut value: usize) {
    let mask = (1_usize << prefix) - 1;
    if value < mask {
        output.put_u8(flags | value as u8);
        return;
    }
    output.put_u8(flags | mask as u8);
    value -= mask;
    while value >= 0x80 {
        output.put_u8((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    output.put_u8(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hpack::Decoder;
    use proptest::prelude::*;

    #[test]
    fn a_smaller_table_is_acknowledged_once() {
        let mut encoder = Encoder::default();
        encoder.peer_table_size(0);
        let headers = Headers::new().with(":status", "200");
        let (mut first, mut second) = (BytesMut::new(), BytesMut::new());
        encoder.encode(&headers, &mut first);
        encoder.encode(&headers, &mut second);
        assert_eq!(first, [0x20, 0x88][..]);
        assert_eq!(second, [0x88][..]);
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(
            fields in proptest::collection::vec(("(:path|:method|content-type|authorization|x-[a-z]{0,200})", proptest::collection::vec(any::<u8>(), 0..300)), 0..20),
        ) {
            let headers = fields.iter().fold(Headers::new(), |headers, (name, value)| headers.with(name, value));
            let mut block = BytesMut::new();
            Encoder::default().encode(&headers, &mut block);
            prop_assert_eq!(Decoder::new(1 << 20).decode(&block), Ok(headers));
        }

        #[test]
        fn no_block_panics_the_decoder(blocks in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..64), 0..8)) {
            let mut decoder = Decoder::new(4096);
            for block in blocks {
                if decoder.decode(&block).is_err() {
                    break;
                }
            }
        }
    }
}
