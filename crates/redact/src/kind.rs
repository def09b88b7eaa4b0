use std::fmt;

/// The kind of a replaced secret: the word in the marker and the key in the manifest's counts.
///
/// At most nine capital letters or digits. A marker is therefore at most 24 bytes, and redacted text cannot
/// grow without limit.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Kind {
    letters: [u8; Kind::MAX],
    len: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{label}` is not a kind of secret: use one to nine capital letters or digits")]
pub struct InvalidKind {
    label: String,
}

// === impl Kind ===

impl Kind {
    /// Maximum length of a label.
    pub const MAX: usize = 9;

    pub const BOOTSTRAP_TOKEN: Self = Self::of("BTOKEN");
    pub const CERTIFICATE_KEY: Self = Self::of("CERTKEY");
    pub const CLOUD_CREDENTIAL: Self = Self::of("CLOUDCRED");
    pub const PASSWORD: Self = Self::of("PASSWORD");
    pub const PRIVATE_KEY: Self = Self::of("PRIVKEY");
    pub const REGISTRY_AUTH: Self = Self::of("REGAUTH");

    pub(crate) const BASE64: Self = Self::of("BASE64");
    pub(crate) const ENVIRONMENT: Self = Self::of("ENVVAR");
    pub(crate) const FILE: Self = Self::of("FILE");
    pub(crate) const HARDWARE_ADDRESS: Self = Self::of("MAC");
    pub(crate) const HOST_NAME: Self = Self::of("HOST");
    pub(crate) const IGNITION_CONFIG: Self = Self::of("IGNCONFIG");
    pub(crate) const IPV4: Self = Self::of("IPV4");
    pub(crate) const IPV6: Self = Self::of("IPV6");
    pub(crate) const KUBERNETES_SECRET: Self = Self::of("K8SSECRET");
    pub(crate) const USER_DATA: Self = Self::of("USERDATA");
    pub(crate) const VENDOR: Self = Self::of("VENDOR");

    pub fn new(label: &str) -> Result<Self, InvalidKind> {
        let fits = (1..=Self::MAX).contains(&label.len());
        if fits && label.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit()) {
            Ok(Self::of(label))
        } else {
            Err(InvalidKind { label: label.to_owned() })
        }
    }

    pub fn as_str(&self) -> &str {
        // The letters are ASCII by construction; the fallback is an empty label.
        std::str::from_utf8(&self.letters[..usize::from(self.len)]).unwrap_or_default()
    }

    #[expect(clippy::cast_possible_truncation, reason = "labels are at most nine bytes")]
    const fn of(label: &str) -> Self {
        let bytes = label.as_bytes();
        let mut letters = [0; Self::MAX];
        let mut i = 0;
        while i < bytes.len() {
            letters[i] = bytes[i];
            i += 1;
        }
        Self { letters, len: bytes.len() as u8 }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_short_and_plain() {
        assert_eq!(Kind::new("BTOKEN"), Ok(Kind::BOOTSTRAP_TOKEN));
        assert_eq!(Kind::BOOTSTRAP_TOKEN.to_string(), "BTOKEN");
        for bad in ["", "lower", "TOOLONGLABEL", "A-B", "É"] {
            assert!(Kind::new(bad).is_err(), "{bad}");
        }
    }
}
