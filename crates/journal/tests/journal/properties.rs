//! Any entry survives a stream unchanged.

use landfall_journal::{Cursor, ExportReader, Id128, JsonReader, Record};
use proptest::collection::vec;
use proptest::prelude::*;

type Fields = Vec<(String, Vec<u8>)>;

fn fields() -> impl Strategy<Value = Fields> {
    let value = prop_oneof!["[ -~]{0,40}".prop_map(String::into_bytes), vec(any::<u8>(), 0..60)];
    vec(("[A-Z][A-Z0-9_]{0,20}", value), 1..8)
}

fn cursor() -> impl Strategy<Value = Cursor> {
    let id = || any::<[u8; 16]>().prop_map(Id128::from_bytes);
    (id(), any::<u64>(), id(), any::<u64>(), any::<u64>(), any::<u64>()).prop_map(
        |(seqnum_id, seqnum, boot_id, monotonic, realtime, xor_hash)| Cursor {
            seqnum_id,
            seqnum,
            boot_id,
            monotonic,
            realtime,
            xor_hash,
        },
    )
}

fn of(record: &Record) -> Fields {
    record.fields().map(|field| (field.name().to_owned(), field.value().to_vec())).collect()
}

/// Writes every value with its length, which the format allows for text, too.
fn export(cursor: &Cursor, fields: &Fields) -> Vec<u8> {
    let mut stream = format!("__CURSOR={cursor}\n").into_bytes();
    for (name, value) in fields {
        stream.extend([name.as_bytes(), b"\n", &(value.len() as u64).to_le_bytes(), value, b"\n"].concat());
    }
    stream.push(b'\n');
    stream
}

proptest! {
    #[test]
    fn a_cursor_is_read_as_it_is_written(cursor in cursor()) {
        prop_assert_eq!(cursor.to_string().parse(), Ok(cursor));
    }

    #[test]
    fn an_export_stream_carries_any_value(cursor in cursor(), entries in vec(fields(), 1..5)) {
        let stream: Vec<u8> = entries.iter().flat_map(|fields| export(&cursor, fields)).collect();
        let mut rewritten = Vec::new();
        let mut reader = ExportReader::new(stream.as_slice());
        for fields in &entries {
            let record = reader.next()?.unwrap();
            prop_assert_eq!(&of(record), fields);
            prop_assert_eq!(record.cursor(), Some(cursor));
            record.write_export(&mut rewritten);
        }
        prop_assert!(reader.next()?.is_none());
        let mut reader = ExportReader::new(rewritten.as_slice());
        for fields in &entries {
            prop_assert_eq!(&of(reader.next()?.unwrap()), fields);
        }
        prop_assert_eq!(reader.skipped(), 0);
    }

    #[test]
    fn a_json_stream_carries_any_value(entries in vec(fields(), 1..5)) {
        let mut stream = String::new();
        for fields in &entries {
            let shown = fields.iter().map(|(name, value)| match std::str::from_utf8(value) {
                Ok(text) => format!("\"{name}\":{}", serde_json::json!(text)),
                Err(_) => format!("\"{name}\":{value:?}"),
            });
            stream += &format!("{{{}}}\n", shown.collect::<Vec<_>>().join(","));
        }
        let mut reader = JsonReader::new(stream.as_bytes());
        for fields in &entries {
            prop_assert_eq!(&of(reader.next()?.unwrap()), fields);
        }
        prop_assert!(reader.next()?.is_none());
    }

    #[test]
    fn no_bytes_harm_a_stream_reader(bytes in vec(any::<u8>(), 0..400)) {
        let mut export = ExportReader::new(bytes.as_slice());
        while export.next()?.is_some() {}
        let mut json = JsonReader::new(bytes.as_slice());
        while json.next()?.is_some() {}
    }
}
