//! Reader for journalctl's JSON (`--output=json`, and the same entries as `json-seq` and `json-sse`).
//!
//! There is one object per line. A value is a string, `null` if it was too long to be printed, or an array of numbers
//! if it is not UTF-8. It is an array of such values if the entry has the field more than once.

use std::fmt;
use std::io::{self, BufRead};

use serde::Deserialize;
use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::export_reader::next_line;
use crate::record::{MAX_BYTES, Record};

/// Prefix of each entry: a record separator in a `json-seq` stream, `data: ` in a `json-sse` stream.
const PREFIXES: [&[u8]; 2] = [b"\x1e", b"data: "];

/// An iterator over the entries of a JSON stream, in bounded memory. Other lines are skipped.
#[derive(Debug)]
pub struct JsonReader<R> {
    input: R,
    line: Vec<u8>,
    record: Record,
    skipped: u64,
}

// === impl JsonReader ===

impl<R: BufRead> JsonReader<R> {
    pub fn new(input: R) -> Self {
        Self { input, line: Vec::new(), record: Record::default(), skipped: 0 }
    }

    /// Returns the number of lines that were not entries.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// Returns the next entry; `None` at the end.
    #[expect(
        clippy::should_implement_trait,
        reason = "the entry borrows the reader, which Iterator cannot express"
    )]
    pub fn next(&mut self) -> io::Result<Option<&Record>> {
        while next_line(&mut self.input, &mut self.line, MAX_BYTES, &mut self.skipped)? {
            let line = PREFIXES
                .iter()
                .fold(self.line.as_slice(), |line, prefix| line.strip_prefix(*prefix).unwrap_or(line));
            if line.trim_ascii().is_empty() {
                continue;
            }
            self.record.clear();
            let mut json = serde_json::Deserializer::from_slice(line);
            let parsed = Fields(&mut self.record).deserialize(&mut json).and_then(|()| json.end());
            if parsed.is_ok() && !self.record.is_empty() {
                return Ok(Some(&self.record));
            }
            self.skipped += 1;
        }
        Ok(None)
    }
}

/// A visitor for the object, which fills a record.
struct Fields<'a>(&'a mut Record);

impl<'de> DeserializeSeed<'de> for Fields<'_> {
    type Value = ();

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Fields<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a journal entry")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key::<String>()? {
            let value = map.next_value::<Value>()?;
            match value {
                Value::Many(values) => values.into_iter().for_each(|value| self.0.push_value(&name, value)),
                one => self.0.push_value(&name, one),
            }
        }
        Ok(())
    }
}

enum Value {
    Bytes(Vec<u8>),
    /// A number: a value by itself, or a byte of a value inside an array.
    Number(u64),
    Many(Vec<Value>),
    /// `null`, or a value that journalctl does not write.
    Missing,
}

impl Record {
    fn push_value(&mut self, name: &str, value: Value) {
        match value {
            Value::Bytes(bytes) => self.push(name.as_bytes(), &bytes),
            Value::Number(number) => self.push(name.as_bytes(), number.to_string().as_bytes()),
            Value::Many(_) | Value::Missing => self.leave_out(),
        }
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value of a journal field")
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::Bytes(text.as_bytes().to_vec()))
    }

    fn visit_string<E>(self, text: String) -> Result<Value, E> {
        Ok(Value::Bytes(text.into_bytes()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(Value::Number(number))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(Value::Bytes(number.to_string().into_bytes()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
        Ok(Value::Bytes(number.to_string().into_bytes()))
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Value, E> {
        Ok(Value::Bytes(flag.to_string().into_bytes()))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Missing)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Value::Missing)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut bytes = Vec::new();
        let mut values = Vec::new();
        while let Some(value) = seq.next_element()? {
            match value {
                Value::Number(number) => match u8::try_from(number) {
                    Ok(byte) => bytes.push(byte),
                    Err(_) => values.push(Value::Number(number)),
                },
                // Arrays have at most two levels.
                Value::Many(_) => values.push(Value::Missing),
                other => values.push(other),
            }
        }
        Ok(if values.is_empty() { Value::Bytes(bytes) } else { Value::Many(values) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_in_every_form() {
        let cases: [(&str, &[&str]); 12] = [
            (r#"{"A":"1"}"#, &["A=\"1\""]),
            (r#"{"A":"a\nb"}"#, &["A=\"a\\nb\""]),
            (r#"{"A":[104,105]}"#, &["A=\"hi\""]),
            (r#"{"A":["x","y"],"B":"z"}"#, &["A=\"x\"", "A=\"y\"", "B=\"z\""]),
            (r#"{"A":[[104],"y",null]}"#, &["A=\"h\"", "A=\"y\""]),
            (r#"{"A":null,"B":"1"}"#, &["B=\"1\""]),
            (r#"{"PRIORITY":6,"B":true}"#, &["PRIORITY=\"6\"", "B=\"true\""]),
            (r#"{"A":{"nested":[1]},"B":"1"}"#, &["B=\"1\""]),
            ("\u{1e}{\"A\":\"1\"}", &["A=\"1\""]),
            (r#"data: {"A":"1"}"#, &["A=\"1\""]),
            (r#"{"__CURSOR":"x","A":"\u00fc"}"#, &["A=\"ü\""]),
            (r#"{"A":"#, &[]),
        ];
        for (line, expected) in cases {
            let mut reader = JsonReader::new(line.as_bytes());
            let fields =
                reader.next().unwrap().map(|record| record.fields().map(|f| format!("{f:?}")).collect());
            assert_eq!(fields.unwrap_or_else(Vec::new), expected, "{line}");
        }
    }

    #[test]
    fn lines_that_are_no_entry_are_skipped_and_counted() {
        let stream = b"-- Boot x --\n\n{\"A\":\"1\"}\n{}\n[1]\n{\"A\":\"2\"} trailing\n{\"A\":\"3\"}\n";
        let mut reader = JsonReader::new(stream.as_slice());
        let mut values = Vec::new();
        while let Some(record) = reader.next().unwrap() {
            values.push(record.get("A").unwrap().to_vec());
        }
        assert_eq!(values, [b"1", b"3"]);
        assert_eq!(reader.skipped(), 4);
    }

    #[test]
    fn what_was_too_long_for_journalctl_is_counted() {
        let mut reader = JsonReader::new(r#"{"A":null,"B":"1","__REALTIME_TIMESTAMP":"5"}"#.as_bytes());
        let record = reader.next().unwrap().unwrap();
        assert_eq!((record.left_out(), record.realtime()), (1, Some(5)));
    }
}
