use std::fmt;

use super::DbusError;

/// Maximum size of a message. The list of all units of a large host has about a megabyte.
const MAX_MESSAGE: usize = 16 << 20;

/// The specification's limit for nesting.
const MAX_NESTING: usize = 32;

/// Maximum number of values in one message, so that a small message cannot become a large tree.
const MAX_VALUES: usize = 1 << 20;

const METHOD_CALL: u8 = 1;
pub(crate) const METHOD_RETURN: u8 = 2;
const ERROR: u8 = 3;
pub(crate) const SIGNAL: u8 = 4;

/// A value of the wire format.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Byte(u8),
    Bool(bool),
    Signed(i64),
    Unsigned(u64),
    Double(f64),
    Text(String),
    Array(Vec<Value>),
    Struct(Vec<Value>),
    Entry(Box<(Value, Value)>),
}

#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) kind: u8,
    pub(crate) reply_to: u32,
    pub(crate) path: String,
    pub(crate) interface: String,
    pub(crate) member: String,
    pub(crate) error_name: String,
    pub(crate) signature: String,
    pub(crate) body: Vec<u8>,
}

/// A parser for the values of a body.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    values: usize,
}

pub(crate) fn encode_call(
    serial: u32,
    [destination, path, interface, method]: [&str; 4],
    arguments: &[&str],
) -> Vec<u8> {
    let mut body = Vec::new();
    for argument in arguments {
        push_string(&mut body, argument);
    }
    let mut fields = Vec::new();
    let signature = "s".repeat(arguments.len());
    for (code, kind, value) in [
        (1, "o", path),
        (2, "s", interface),
        (3, "s", method),
        (6, "s", destination),
        (8, "g", signature.as_str()),
    ] {
        if value.is_empty() {
            continue;
        }
        align(&mut fields, 8);
        fields.extend([code, 1, kind.as_bytes()[0], 0]);
        if kind == "g" {
            fields.push(u8::try_from(value.len()).unwrap_or(u8::MAX));
            fields.extend_from_slice(value.as_bytes());
            fields.push(0);
        } else {
            push_string(&mut fields, value);
        }
    }
    let mut message = vec![b'l', METHOD_CALL, 0, 1];
    message.extend(length(body.len()));
    message.extend(serial.to_le_bytes());
    message.extend(length(fields.len()));
    message.extend(fields);
    align(&mut message, 8);
    message.extend(body);
    message
}

fn push_string(out: &mut Vec<u8>, text: &str) {
    align(out, 4);
    out.extend(length(text.len()));
    out.extend_from_slice(text.as_bytes());
    out.push(0);
}

/// Encodes a length. Messages sent here are far below the limit of the type.
fn length(length: usize) -> [u8; 4] {
    u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes()
}

fn align(out: &mut Vec<u8>, to: usize) {
    out.resize(out.len().next_multiple_of(to), 0);
}

/// Returns the lengths of header fields and body from the fixed part of a message.
pub(crate) fn lengths(fixed: &[u8; 16]) -> Result<(usize, usize), DbusError> {
    if fixed[0] != b'l' || fixed[3] != 1 {
        return Err(DbusError::Malformed { what: "another byte order or version" });
    }
    let number =
        |at: usize| u32::from_le_bytes([fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]]) as usize;
    let (body, fields) = (number(4), number(12));
    if body > MAX_MESSAGE || fields > MAX_MESSAGE {
        return Err(DbusError::Malformed { what: "a message that is too long" });
    }
    Ok((fields, body))
}

pub(crate) fn parse_message(fixed: &[u8; 16], rest: &[u8]) -> Result<Message, DbusError> {
    let (fields_len, _) = lengths(fixed)?;
    let fields = rest.get(..fields_len).ok_or(DbusError::Malformed { what: "a cut header" })?;
    let body = rest.get(fields_len.next_multiple_of(8)..).unwrap_or_default().to_vec();
    let mut message = Message {
        kind: fixed[1],
        reply_to: 0,
        path: String::new(),
        interface: String::new(),
        member: String::new(),
        error_name: String::new(),
        signature: String::new(),
        body,
    };
    let mut reader = Reader { bytes: fields, at: 0, values: 0 };
    while reader.at < fields.len() {
        reader.align(8)?;
        if reader.at >= fields.len() {
            break;
        }
        let code = reader.byte()?;
        let signature = reader.signature()?;
        match (code, reader.value(&mut signature.as_bytes(), 0)?) {
            (1, Value::Text(path)) => message.path = path,
            (2, Value::Text(interface)) => message.interface = interface,
            (3, Value::Text(member)) => message.member = member,
            (4, Value::Text(name)) => message.error_name = name,
            (5, Value::Unsigned(serial)) => message.reply_to = u32::try_from(serial).unwrap_or(0),
            (8, Value::Text(signature)) => message.signature = signature,
            _ => {}
        }
    }
    // Signals are not responses, whatever reply serial they contain.
    if message.kind != METHOD_RETURN && message.kind != ERROR {
        message.reply_to = 0;
    }
    Ok(message)
}

/// Parses the values of a response, including its header.
pub fn parse_reply(bytes: &[u8]) -> Result<Vec<Value>, DbusError> {
    let cut = DbusError::Malformed { what: "a cut header" };
    let Some((fixed, rest)) = bytes.split_first_chunk::<16>() else { return Err(cut) };
    let message = parse_message(fixed, rest)?;
    parse_values(&message.signature, &message.body)
}

/// Parses the values of a little-endian body by its signature.
pub fn parse_values(signature: &str, body: &[u8]) -> Result<Vec<Value>, DbusError> {
    let mut reader = Reader { bytes: body, at: 0, values: 0 };
    let mut signature = signature.as_bytes();
    let mut values = Vec::new();
    while !signature.is_empty() {
        values.push(reader.value(&mut signature, 0)?);
    }
    Ok(values)
}

// === impl Reader ===

impl Reader<'_> {
    fn value(&mut self, signature: &mut &[u8], depth: usize) -> Result<Value, DbusError> {
        self.values += 1;
        if depth > MAX_NESTING || self.values > MAX_VALUES {
            return Err(DbusError::Malformed { what: "too much nesting" });
        }
        let code = take_code(signature)?;
        Ok(match code {
            b'y' => Value::Byte(self.byte()?),
            b'b' => Value::Bool(self.fixed::<4>().map(u32::from_le_bytes)? != 0),
            b'n' => Value::Signed(self.fixed::<2>().map(i16::from_le_bytes)?.into()),
            b'q' => Value::Unsigned(self.fixed::<2>().map(u16::from_le_bytes)?.into()),
            b'i' => Value::Signed(self.fixed::<4>().map(i32::from_le_bytes)?.into()),
            b'u' | b'h' => Value::Unsigned(self.fixed::<4>().map(u32::from_le_bytes)?.into()),
            b'x' => Value::Signed(self.fixed::<8>().map(i64::from_le_bytes)?),
            b't' => Value::Unsigned(self.fixed::<8>().map(u64::from_le_bytes)?),
            b'd' => Value::Double(self.fixed::<8>().map(f64::from_le_bytes)?),
            b's' | b'o' => {
                let length = u32::from_le_bytes(self.fixed::<4>()?) as usize;
                Value::Text(self.text(length)?)
            }
            b'g' => Value::Text(self.signature()?),
            b'v' => {
                let signature = self.signature()?;
                self.value(&mut signature.as_bytes(), depth + 1)?
            }
            b'a' => self.array(signature, depth)?,
            b'(' => {
                self.align(8)?;
                let mut values = Vec::new();
                while signature.first() != Some(&b')') {
                    values.push(self.value(signature, depth + 1)?);
                }
                *signature = &signature[1..];
                Value::Struct(values)
            }
            b'{' => {
                self.align(8)?;
                let key = self.value(signature, depth + 1)?;
                let value = self.value(signature, depth + 1)?;
                if take_code(signature)? != b'}' {
                    return Err(DbusError::Malformed { what: "a bad signature" });
                }
                Value::Entry(Box::new((key, value)))
            }
            _ => return Err(DbusError::Malformed { what: "a bad signature" }),
        })
    }

    fn array(&mut self, signature: &mut &[u8], depth: usize) -> Result<Value, DbusError> {
        let length = u32::from_le_bytes(self.fixed::<4>()?) as usize;
        let element = *signature;
        skip_type(signature, 0)?;
        self.align(match element.first() {
            Some(b'(' | b'{' | b'x' | b't' | b'd') => 8,
            _ => 1,
        })?;
        let end = self.at.checked_add(length).filter(|end| *end <= self.bytes.len());
        let end = end.ok_or(DbusError::Malformed { what: "an array longer than its message" })?;
        let mut values = Vec::new();
        while self.at < end {
            let before = self.at;
            values.push(self.value(&mut &*element, depth + 1)?);
            if self.at == before {
                return Err(DbusError::Malformed { what: "an element without size" });
            }
        }
        Ok(Value::Array(values))
    }

    fn byte(&mut self) -> Result<u8, DbusError> {
        let byte = self.bytes.get(self.at).ok_or(DbusError::Malformed { what: "a cut value" })?;
        self.at += 1;
        Ok(*byte)
    }

    /// Reads a number, aligned to its size.
    fn fixed<const N: usize>(&mut self) -> Result<[u8; N], DbusError> {
        self.align(N)?;
        let bytes = self.bytes.get(self.at..self.at + N).and_then(|bytes| bytes.try_into().ok());
        self.at += N;
        bytes.ok_or(DbusError::Malformed { what: "a cut value" })
    }

    fn signature(&mut self) -> Result<String, DbusError> {
        let length = self.byte()?;
        self.text(length.into())
    }

    /// Reads text of this length, and the NUL after it.
    fn text(&mut self, length: usize) -> Result<String, DbusError> {
        let end = self.at.checked_add(length).filter(|end| *end < self.bytes.len());
        let end = end.ok_or(DbusError::Malformed { what: "a cut text" })?;
        let text = String::from_utf8_lossy(&self.bytes[self.at..end]).into_owned();
        self.at = end + 1;
        Ok(text)
    }

    fn align(&mut self, to: usize) -> Result<(), DbusError> {
        self.at = self.at.next_multiple_of(to);
        if self.at > self.bytes.len() { Err(DbusError::Malformed { what: "a cut value" }) } else { Ok(()) }
    }
}

fn take_code(signature: &mut &[u8]) -> Result<u8, DbusError> {
    let (code, rest) = signature.split_first().ok_or(DbusError::Malformed { what: "a bad signature" })?;
    *signature = rest;
    Ok(*code)
}

/// Skips one complete type.
fn skip_type(signature: &mut &[u8], depth: usize) -> Result<(), DbusError> {
    if depth > MAX_NESTING {
        return Err(DbusError::Malformed { what: "too much nesting" });
    }
    match take_code(signature)? {
        b'a' => skip_type(signature, depth + 1),
        open @ (b'(' | b'{') => {
            let close = if open == b'(' { b')' } else { b'}' };
            while signature.first() != Some(&close) {
                skip_type(signature, depth + 1)?;
            }
            take_code(signature).map(drop)
        }
        b')' | b'}' => Err(DbusError::Malformed { what: "a bad signature" }),
        _ => Ok(()),
    }
}

// === impl Value ===

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |f: &mut fmt::Formatter<'_>, values: &[Value]| {
            values.iter().enumerate().try_for_each(|(index, value)| {
                if index > 0 {
                    f.write_str(" ")?;
                }
                value.fmt(f)
            })
        };
        match self {
            Self::Byte(value) => write!(f, "{value:02x}"),
            Self::Bool(value) => f.write_str(if *value { "yes" } else { "no" }),
            Self::Signed(value) => value.fmt(f),
            Self::Unsigned(value) => value.fmt(f),
            Self::Double(value) => value.fmt(f),
            Self::Text(value) => f.write_str(value),
            // IDs are arrays of bytes.
            Self::Array(values) if matches!(values.first(), Some(Self::Byte(_))) => {
                values.iter().try_for_each(|value| value.fmt(f))
            }
            Self::Array(values) | Self::Struct(values) => list(f, values),
            Self::Entry(entry) => write!(f, "{}={}", entry.0, entry.1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_we_write_is_what_we_read() {
        let call = encode_call(7, ["d.e.f", "/path", "i.j", "Method"], &["one", "three"]);
        let fixed: [u8; 16] = call[..16].try_into().unwrap();
        let (fields, body) = lengths(&fixed).unwrap();
        assert_eq!(call.len(), 16 + fields.next_multiple_of(8) + body);
        let message = parse_message(&fixed, &call[16..]).unwrap();
        assert_eq!((message.kind, message.signature.as_str()), (METHOD_CALL, "ss"));
        let values = parse_values(&message.signature, &message.body).unwrap();
        assert_eq!(values, [Value::Text("one".to_owned()), Value::Text("three".to_owned())]);
    }

    #[test]
    fn nested_types_are_read() {
        // a{sv} with one entry: "A" -> variant u 5
        let body = [16, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, b'A', 0, 1, b'u', 0, 0, 0, 0, 5, 0, 0, 0];
        let values = parse_values("a{sv}", &body).unwrap();
        assert_eq!(values[0].to_string(), "A=5");
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_break_the_reader(signature in "[ybnqiuxtdsogva(){}]{0,12}", body: Vec<u8>) {
            let _ = parse_values(&signature, &body);
        }
    }
}
