//! DNS messages, without I/O: encodes address queries and decodes their responses.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

/// Maximum number of records read from a response.
const MAX_RECORDS: usize = 64;

/// Maximum number of jumps inside one compressed name: a name has at most 127 labels.
const MAX_JUMPS: usize = 127;

const MAX_NAME: usize = 255;
const MAX_LABEL: usize = 63;
const HEADER: usize = 12;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordType {
    A,
    Aaaa,
}

/// A query for the addresses of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    pub id: u16,
    pub name: String,
    pub record: RecordType,
}

/// A server's response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub id: u16,
    /// Truncated: retry over TCP.
    pub cut: bool,
    pub code: u8,
    pub answers: Vec<Answer>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Ipv4(Ipv4Addr),
    Ipv6(Ipv6Addr),
    Alias(String),
    /// A record of another type, with its type number.
    Other(u16),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    #[error("invalid DNS name")]
    Name,
    #[error("the message is cut")]
    Cut,
    #[error("the message is not an answer")]
    NoAnswer,
    #[error("a name in the message is malformed")]
    BadName,
}

// === impl Query ===

impl Query {
    pub fn encode(&self) -> Result<Vec<u8>, MessageError> {
        let mut bytes = Vec::with_capacity(HEADER + self.name.len() + 6);
        bytes.extend(self.id.to_be_bytes());
        // One question with recursion desired.
        bytes.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
        for label in self.name.trim_end_matches('.').split('.') {
            let length = u8::try_from(label.len()).map_err(|_| MessageError::Name)?;
            if length == 0 || usize::from(length) > MAX_LABEL {
                return Err(MessageError::Name);
            }
            bytes.push(length);
            bytes.extend_from_slice(label.as_bytes());
        }
        bytes.push(0);
        if bytes.len() - HEADER > MAX_NAME {
            return Err(MessageError::Name);
        }
        bytes.extend([0, self.record.number(), 0, 1]);
        Ok(bytes)
    }
}

// === impl RecordType ===

impl RecordType {
    fn number(self) -> u8 {
        match self {
            Self::A => 1,
            Self::Aaaa => 28,
        }
    }
}

impl fmt::Display for RecordType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::A => "A",
            Self::Aaaa => "AAAA",
        })
    }
}

// === impl Message ===

impl Message {
    pub fn parse(bytes: &[u8]) -> Result<Self, MessageError> {
        let number = |at: usize| {
            let bytes: Option<[u8; 2]> = bytes.get(at..at + 2).and_then(|bytes| bytes.try_into().ok());
            bytes.map(u16::from_be_bytes).ok_or(MessageError::Cut)
        };
        let (id, flags) = (number(0)?, number(2)?);
        if flags & 0x8000 == 0 {
            return Err(MessageError::NoAnswer);
        }
        let (questions, answers) = (number(4)?, number(6)?);
        number(10)?;
        let mut message =
            Self { id, cut: flags & 0x0200 != 0, code: (flags & 0x000f) as u8, answers: Vec::new() };
        let mut at = HEADER;
        for _ in 0..usize::from(questions).min(MAX_RECORDS) {
            at = skip_name(bytes, at)? + 4;
        }
        for _ in 0..usize::from(answers).min(MAX_RECORDS) {
            at = skip_name(bytes, at)?;
            let (kind, length) = (number(at)?, usize::from(number(at + 8)?));
            let start = at + 10;
            let data = bytes.get(start..start + length).ok_or(MessageError::Cut)?;
            message.answers.push(match (kind, data.len()) {
                (1, 4) => Answer::Ipv4(Ipv4Addr::new(data[0], data[1], data[2], data[3])),
                (28, 16) => {
                    <[u8; 16]>::try_from(data).map_or(Answer::Other(kind), |data| Answer::Ipv6(data.into()))
                }
                (5, _) => Answer::Alias(name(bytes, start)?),
                _ => Answer::Other(kind),
            });
            at = start + length;
        }
        Ok(message)
    }

    /// Returns the name of the response code.
    pub fn code_name(&self) -> &'static str {
        match self.code {
            0 => "NOERROR",
            1 => "FORMERR",
            2 => "SERVFAIL",
            3 => "NXDOMAIN",
            4 => "NOTIMP",
            5 => "REFUSED",
            _ => "an unusual error",
        }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ipv4(address) => address.fmt(f),
            Self::Ipv6(address) => address.fmt(f),
            Self::Alias(name) => write!(f, "alias of {name}"),
            Self::Other(kind) => write!(f, "record of type {kind}"),
        }
    }
}

/// Returns the offset after a name.
fn skip_name(bytes: &[u8], mut at: usize) -> Result<usize, MessageError> {
    loop {
        let length = *bytes.get(at).ok_or(MessageError::Cut)?;
        match length {
            0 => return Ok(at + 1),
            // A compression pointer ends the name: its remaining labels are elsewhere in the message.
            0xc0.. => return Ok(at + 2),
            1..=63 => at += 1 + usize::from(length),
            _ => return Err(MessageError::BadName),
        }
    }
}

fn name(bytes: &[u8], mut at: usize) -> Result<String, MessageError> {
    let mut text = String::new();
    for _ in 0..MAX_JUMPS {
        let length = *bytes.get(at).ok_or(MessageError::Cut)?;
        match length {
            0 => return Ok(text),
            0xc0.. => {
                let low = *bytes.get(at + 1).ok_or(MessageError::Cut)?;
                at = usize::from(length & 0x3f) << 8 | usize::from(low);
            }
            1..=63 => {
                let label = bytes.get(at + 1..at + 1 + usize::from(length)).ok_or(MessageError::Cut)?;
                if text.len() + label.len() > MAX_NAME {
                    return Err(MessageError::BadName);
                }
                let plain = |byte: &u8| if byte.is_ascii_graphic() { char::from(*byte) } else { '?' };
                text.extend(label.iter().map(plain));
                text.push('.');
                at += 1 + usize::from(length);
            }
            _ => return Err(MessageError::BadName),
        }
    }
    Err(MessageError::BadName)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a typical server response, with a name compressed to a pointer into the question.
    fn answer() -> Vec<u8> {
        let query = Query { id: 7, name: "api.c1.example".to_owned(), record: RecordType::A };
        let mut bytes = query.encode().unwrap();
        bytes[2..8].copy_from_slice(&[0x81, 0x80, 0, 1, 0, 2]);
        bytes.extend([0xc0, 12, 0, 5, 0, 1, 0, 0, 0, 60, 0, 5, 2, b'l', b'b', 0xc0, 16]);
        bytes.extend([0xc0, 44, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 10, 0, 0, 7]);
        bytes
    }

    #[test]
    fn an_answer_with_an_alias_is_read() {
        let message = Message::parse(&answer()).unwrap();
        assert_eq!((message.id, message.cut, message.code_name()), (7, false, "NOERROR"));
        let told: Vec<String> = message.answers.iter().map(ToString::to_string).collect();
        assert_eq!(told, ["alias of lb.c1.example.", "10.0.0.7"]);
    }

    #[test]
    fn damage_is_an_error_and_circles_end() {
        let whole = answer();
        for end in 0..whole.len() {
            let _ = Message::parse(&whole[..end]);
        }
        let mut circle = whole.clone();
        let pointer = circle.len() - 18;
        circle[pointer..pointer + 2].copy_from_slice(&[0xc0, 44]);
        assert!(Message::parse(&circle).is_err());
        assert_eq!(Message::parse(&whole[..12]).err(), Some(MessageError::Cut));
        let question = Query { id: 7, name: "a".to_owned(), record: RecordType::Aaaa }.encode().unwrap();
        assert_eq!(Message::parse(&question).err(), Some(MessageError::NoAnswer));
    }

    #[test]
    fn names_that_cannot_be_are_refused() {
        for name in ["", "a..b", &"x".repeat(64), &"x.".repeat(200)] {
            let query = Query { id: 1, name: name.to_owned(), record: RecordType::A };
            assert_eq!(query.encode(), Err(MessageError::Name), "{name}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_break_the_parser(mut bytes: Vec<u8>) {
            if let Some(flags) = bytes.get_mut(2) {
                *flags |= 0x80;
            }
            let _ = Message::parse(&bytes);
        }
    }
}
