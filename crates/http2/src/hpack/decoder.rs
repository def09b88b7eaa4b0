use super::table::Table;
use super::{Field, Headers, HpackError, huffman};

/// Maximum value of integers; larger ones would exceed other limits.
const MAX_INTEGER: usize = 1 << 24;

/// A decoder for header blocks. After an error its table no longer matches the peer's, so the connection must end.
#[derive(Debug)]
pub(crate) struct Decoder {
    table: Table,
    limit: usize,
}

struct Reader<'a> {
    bytes: &'a [u8],
}

// === impl Decoder ===

impl Decoder {
    /// Creates a decoder that rejects header lists larger than `limit`.
    pub(crate) fn new(limit: usize) -> Self {
        Self { table: Table::new(), limit }
    }

    pub(crate) fn decode(&mut self, block: &[u8]) -> Result<Headers, HpackError> {
        let mut reader = Reader { bytes: block };
        let mut headers = Headers::new();
        let mut left = self.limit;
        while let Some(first) = reader.bytes.first().copied() {
            let field = if first & 0x80 != 0 {
                self.table.get(reader.integer(7)?)?
            } else if first & 0x40 != 0 {
                let field = self.literal(&mut reader, 6, left)?;
                self.table.insert(field.clone());
                field
            } else if first & 0x20 != 0 {
                if !headers.fields().is_empty() {
                    return Err(HpackError::TableSize);
                }
                self.table.resize(reader.integer(5)?)?;
                continue;
            } else {
                self.literal(&mut reader, 4, left)?
            };
            left = left.checked_sub(field.size()).ok_or(HpackError::TooLarge)?;
            headers.push(field.name, field.value);
        }
        Ok(headers)
    }

    fn literal(&self, reader: &mut Reader<'_>, prefix: u32, limit: usize) -> Result<Field, HpackError> {
        let name = match reader.integer(prefix)? {
            0 => reader.string(limit)?,
            index => self.table.get(index)?.name,
        };
        let value = reader.string(limit)?;
        Ok(Field { name, value })
    }
}

// === impl Reader ===

impl Reader<'_> {
    fn byte(&mut self) -> Result<u8, HpackError> {
        let (first, rest) = self.bytes.split_first().ok_or(HpackError::Truncated)?;
        self.bytes = rest;
        Ok(*first)
    }

    fn integer(&mut self, prefix: u32) -> Result<usize, HpackError> {
        let mask = (1_usize << prefix) - 1;
        let mut value = usize::from(self.byte()?) & mask;
        if value < mask {
            return Ok(value);
        }
        for shift in (0..).step_by(7) {
            let byte = self.byte()?;
            let part = usize::from(byte & 0x7f).checked_shl(shift).ok_or(HpackError::Integer)?;
            value =
                value.checked_add(part).filter(|value| *value <= MAX_INTEGER).ok_or(HpackError::Integer)?;
            // An endless sequence of zeros would not increase the value.
            if shift > 28 {
                return Err(HpackError::Integer);
            }
            if byte & 0x80 == 0 {
                break;
            }
        }
        Ok(value)
    }

    fn string(&mut self, limit: usize) -> Result<Vec<u8>, HpackError> {
        let coded = self.bytes.first().ok_or(HpackError::Truncated)? & 0x80 != 0;
        let length = self.integer(7)?;
        let (text, rest) = self.bytes.split_at_checked(length).ok_or(HpackError::Truncated)?;
        self.bytes = rest;
        if coded {
            huffman::decode(text, limit)
        } else if text.len() > limit {
            Err(HpackError::TooLarge)
        } else {
            Ok(text.to_vec())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
        digits
            .chunks(2)
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
            .collect()
    }

    fn decoded(decoder: &mut Decoder, block: &str) -> Vec<(String, String)> {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let headers = decoder.decode(&hex(block)).unwrap();
        headers.fields().iter().map(|field| (text(&field.name), text(&field.value))).collect()
    }

    fn pairs(list: &[(&str, &str)]) -> Vec<(String, String)> {
        list.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    /// Tests RFC 7541, C.3 (plain) and C.4 (Huffman): three requests on one connection.
    #[test]
    fn requests_of_the_rfc_decode_with_and_without_huffman() {
        let plain = [
            "8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
            "8286 84be 5808 6e6f 2d63 6163 6865",
            "8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65",
        ];
        let coded = [
            "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff",
            "8286 84be 5886 a8eb 1064 9cbf",
            "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
        ];
        for blocks in [plain, coded] {
            let mut decoder = Decoder::new(4096);
            let first =
                [(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "www.example.com")];
            assert_eq!(decoded(&mut decoder, blocks[0]), pairs(&first));
            let second = [&first[..], &[("cache-control", "no-cache")]].concat();
            assert_eq!(decoded(&mut decoder, blocks[1]), pairs(&second));
            let third = [
                (":method", "GET"),
                (":scheme", "https"),
                (":path", "/index.html"),
                (":authority", "www.example.com"),
                ("custom-key", "custom-value"),
            ];
            assert_eq!(decoded(&mut decoder, blocks[2]), pairs(&third));
        }
    }

    /// Tests RFC 7541, C.5: responses with a table of 256 bytes, so that entries are evicted.
    #[test]
    fn evicted_entries_are_gone() {
        let mut decoder = Decoder::new(4096);
        decoder.table.resize(256).unwrap();
        let first = "4803 3330 3258 0770 7269 7661 7465 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 \
                     2032 303a 3133 3a32 3120 474d 546e 1768 7474 7073 3a2f 2f77 7777 2e65 7861 6d70 \
                     6c65 2e63 6f6d";
        assert_eq!(decoded(&mut decoder, first)[0], (":status".to_owned(), "302".to_owned()));
        let second = decoded(&mut decoder, "4803 3330 37c1 c0bf");
        assert_eq!(
            second,
            pairs(&[
                (":status", "307"),
                ("cache-control", "private"),
                ("date", "Mon, 21 Oct 2013 20:13:21 GMT"),
                ("location", "https://www.example.com"),
            ])
        );
        // `:status: 302` was evicted; four entries are left.
        assert_eq!(decoder.decode(&hex("c2")), Err(HpackError::Index));
    }

    #[test]
    fn hostile_blocks_are_refused() {
        let mut decoder = Decoder::new(100);
        for (block, error) in [
            ("80", HpackError::Index),
            ("ff", HpackError::Truncated),
            ("ffff ffff ffff ff", HpackError::Integer),
            ("ff80 8080 8080 8080", HpackError::Integer),
            ("4001 61", HpackError::Truncated),
            ("3fe2 1f", HpackError::TableSize),
            ("82 20", HpackError::TableSize),
            ("8282 8282", HpackError::TooLarge),
        ] {
            assert_eq!(decoder.decode(&hex(block)), Err(error), "{block}");
        }
    }
}
