//! Header compression (RFC 7541), as far as gRPC needs it: a complete decoder, and a stateless encoder that never
//! refers to earlier header blocks.

mod decoder;
mod encoder;
mod huffman;
mod table;

pub(crate) use decoder::Decoder;
pub(crate) use encoder::Encoder;

use std::fmt;

/// One header field. Names are lower case on the wire; values are bytes, not text.
#[derive(Clone, PartialEq, Eq)]
pub struct Field {
    pub name: Vec<u8>,
    pub value: Vec<u8>,
}

/// The header fields of one message, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Headers(Vec<Field>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HpackError {
    #[error("a header block ends in the middle of a field")]
    Truncated,
    #[error("an integer in a header block is too large")]
    Integer,
    #[error("a header block refers to an entry that does not exist")]
    Index,
    #[error("a string in a header block is not valid Huffman code")]
    Huffman,
    #[error("a header block asks for a table larger than allowed, or too late")]
    TableSize,
    #[error("the header fields are larger than allowed")]
    TooLarge,
}

// === impl Field ===

impl Field {
    /// Returns the size of a field for tables and limits (RFC 7541, 4.1).
    fn size(&self) -> usize {
        self.name.len() + self.value.len() + 32
    }
}

impl fmt::Debug for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Values may be credentials.
        write!(f, "{} ({} bytes)", self.name.escape_ascii(), self.value.len())
    }
}

// === impl Headers ===

impl Headers {
    pub fn new() -> Self {
        Self::default()
    }

    #[must_use]
    pub fn with(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.push(name.as_bytes().to_vec(), value.as_ref().to_vec());
        self
    }

    pub fn fields(&self) -> &[Field] {
        &self.0
    }

    /// Returns the value of the first field called `name`.
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.0.iter().find(|field| field.name == name.as_bytes()).map(|field| field.value.as_slice())
    }

    /// Returns the values of all fields called `name`.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
        self.0.iter().filter(move |field| field.name == name.as_bytes()).map(|field| field.value.as_slice())
    }

    fn push(&mut self, name: Vec<u8>, value: Vec<u8>) {
        self.0.push(Field { name, value });
    }
}
