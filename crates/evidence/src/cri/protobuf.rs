//! The wire format of protocol buffers, parsed field by field.

use super::CriError;

/// The value of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value<'a> {
    Number(u64),
    /// A text, or a message.
    Bytes(&'a [u8]),
    /// A type that none of the parsed fields has.
    Other,
}

/// An iterator over the fields of a message.
#[derive(Clone, Debug)]
pub(crate) struct Fields<'a> {
    bytes: &'a [u8],
}

/// Returns the messages in the fields of this number.
pub(crate) fn messages(bytes: &[u8], number: u64) -> Result<Vec<&[u8]>, CriError> {
    let mut found = Vec::new();
    for field in Fields::of(bytes) {
        if let (at, Value::Bytes(message)) = field?
            && at == number
        {
            found.push(message);
        }
    }
    Ok(found)
}

/// Appends a field that contains text or a message.
pub(crate) fn push_bytes(out: &mut Vec<u8>, number: u8, bytes: &[u8]) {
    // Field numbers of requests are below 16, and texts below 128 bytes: IDs have 64.
    out.push(number << 3 | 2);
    out.push(u8::try_from(bytes.len()).unwrap_or(0).min(0x7f));
    out.extend_from_slice(&bytes[..bytes.len().min(0x7f)]);
}

// === impl Value ===

impl Value<'_> {
    pub(crate) fn text(self) -> String {
        match self {
            Self::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            Self::Number(_) | Self::Other => String::new(),
        }
    }

    pub(crate) fn number(self) -> u64 {
        match self {
            Self::Number(number) => number,
            Self::Bytes(_) | Self::Other => 0,
        }
    }

    /// Converts a signed number, which is encoded as its two's complement.
    pub(crate) fn signed(self) -> i64 {
        self.number().cast_signed()
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Number(_) | Self::Other => &[],
        }
    }
}

// === impl Fields ===

impl<'a> Fields<'a> {
    pub(crate) fn of(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    fn varint(&mut self) -> Result<u64, CriError> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = *self.take(1)?.first().unwrap_or(&0);
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(CriError::Malformed { what: "a number that is too long" })
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], CriError> {
        let (taken, rest) = self
            .bytes
            .split_at_checked(count)
            .ok_or(CriError::Malformed { what: "a message that is cut" })?;
        self.bytes = rest;
        Ok(taken)
    }

    fn field(&mut self) -> Result<(u64, Value<'a>), CriError> {
        let key = self.varint()?;
        let value = match key & 7 {
            0 => Value::Number(self.varint()?),
            1 => self.take(8).map(|_| Value::Other)?,
            2 => {
                let length = self.varint()?;
                Value::Bytes(self.take(usize::try_from(length).unwrap_or(usize::MAX))?)
            }
            5 => self.take(4).map(|_| Value::Other)?,
            _ => return Err(CriError::Malformed { what: "a field of an unknown type" }),
        };
        Ok((key >> 3, value))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, Value<'a>), CriError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.bytes.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            // Bytes after an invalid field have no meaning.
            self.bytes = &[];
        }
        Some(field)
    }
}
