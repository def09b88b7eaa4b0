use std::fmt;
use std::str::FromStr;

/// A 128-bit ID of a host, a boot, a file or a sequence in systemd. Its text form has 32 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Id128([u8; 16]);

/// An invalid ID: the text does not have 32 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an id must be 32 hexadecimal digits")]
pub struct BadId;

// === impl Id128 ===

impl Id128 {
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    pub const fn bytes(self) -> [u8; 16] {
        self.0
    }

    /// Returns the 32 digits, faster than a formatter.
    pub(crate) fn digits(self) -> [u8; 32] {
        let mut digits = [0; 32];
        // The lengths fit, so it cannot fail.
        let _ = hex::encode_to_slice(self.0, &mut digits);
        digits
    }

    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        let mut id = [0; 16];
        hex::decode_to_slice(text, &mut id).ok()?;
        Some(Self(id))
    }
}

impl fmt::Display for Id128 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Id128 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Id128 {
    type Err = BadId;

    fn from_str(text: &str) -> Result<Self, BadId> {
        Self::parse(text.as_bytes()).ok_or(BadId)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_survive_a_round_trip_and_bad_ones_are_refused() {
        let text = "fc2e22bc6ee647b6b90729ab34a250b1";
        let id: Id128 = text.parse().unwrap();
        assert_eq!(id.to_string(), text);
        assert_eq!(id.digits(), text.as_bytes());
        for bad in ["", "fc2e", "fc2e22bc6ee647b6b90729ab34a250bg", "fc2e22bc6ee647b6b90729ab34a250b1a"] {
            assert_eq!(bad.parse::<Id128>(), Err(BadId), "{bad}");
        }
    }
}
