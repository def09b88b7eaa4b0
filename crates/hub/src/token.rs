//! Tokens: a subject and an expiry time, signed with a key that only the hub's operators have.
//!
//! They are verified without access to the store, so replicas share only the key. A token has the form
//! `landfall.CLAIMS.SEAL`, both parts in base64 without padding. The seal is HMAC-SHA-256 over the first two parts.
//! Changing the key revokes every token.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use hmac::{Hmac, KeyInit as _, Mac as _};
use jiff::Timestamp;
use landfall_model::Secret;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::name::NodeName;

/// Prefix of every token, so that secret scanners and users recognize one.
const PREFIX: &str = "landfall";
/// Minimum length of the key in bytes; shorter keys can be guessed.
const MIN_KEY: usize = 32;
/// Maximum length of a token, which is usually about 200 bytes.
const MAX_TOKEN: usize = 2048;

/// The key that signs tokens.
#[expect(missing_debug_implementations, reason = "holds a secret")]
pub struct TokenKey(Secret<Vec<u8>>);

/// The subject of a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind", content = "name")]
pub enum Holder {
    /// A machine; may only report as itself.
    Node(String),
    /// Machines whose names have this prefix; each may report as itself, identified by its key.
    Nodes(String),
    /// A user or program that may read everything.
    Viewer(String),
    /// An operator that may also create tokens, forward reports and delete nodes.
    Operator(String),
}

#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    #[error("a key for tokens has at least {MIN_KEY} bytes")]
    ShortKey,
    #[error("not a token of this hub")]
    Foreign,
    #[error("the token has expired")]
    Expired,
    #[error("the token's name cannot be used")]
    Name,
}

#[derive(Serialize, Deserialize)]
struct Claims {
    #[serde(flatten)]
    holder: Holder,
    /// Seconds since 1970.
    expires: i64,
}

// === impl TokenKey ===

impl TokenKey {
    pub fn new(key: Secret<Vec<u8>>) -> Result<Self, TokenError> {
        if key.expose().len() < MIN_KEY { Err(TokenError::ShortKey) } else { Ok(Self(key)) }
    }

    pub fn issue(&self, holder: Holder, expires: Timestamp) -> Result<Secret<String>, TokenError> {
        if !holder.is_for_every_node() {
            NodeName::new(holder.name()).map_err(|_| TokenError::Name)?;
        }
        let claims = Claims { holder, expires: expires.as_second() };
        let claims = serde_json::to_vec(&claims).map_err(|_| TokenError::Name)?;
        let sealed = format!("{PREFIX}.{}", BASE64.encode(claims));
        let seal = BASE64.encode(self.seal(&sealed).ok_or(TokenError::ShortKey)?.finalize().into_bytes());
        Ok(Secret::new(format!("{sealed}.{seal}")))
    }

    pub fn check(&self, token: &str, now: Timestamp) -> Result<Holder, TokenError> {
        if token.len() > MAX_TOKEN {
            return Err(TokenError::Foreign);
        }
        let (sealed, seal) = token.rsplit_once('.').ok_or(TokenError::Foreign)?;
        let (prefix, claims) = sealed.split_once('.').ok_or(TokenError::Foreign)?;
        let seal = BASE64.decode(seal).map_err(|_| TokenError::Foreign)?;
        // Compares in constant time, and before the claims are parsed.
        self.seal(sealed).ok_or(TokenError::Foreign)?.verify_slice(&seal).map_err(|_| TokenError::Foreign)?;
        if prefix != PREFIX {
            return Err(TokenError::Foreign);
        }
        let claims = BASE64.decode(claims).map_err(|_| TokenError::Foreign)?;
        let claims: Claims = serde_json::from_slice(&claims).map_err(|_| TokenError::Foreign)?;
        if claims.expires <= now.as_second() { Err(TokenError::Expired) } else { Ok(claims.holder) }
    }

    /// Identifies a token without storing it.
    pub(crate) fn fingerprint(token: &str) -> [u8; 32] {
        // Without the seal: a holder that can encode it in two ways would otherwise have two tokens.
        Sha256::digest(token.rsplit_once('.').map_or(token, |(sealed, _)| sealed)).into()
    }

    fn seal(&self, sealed: &str) -> Option<Hmac<Sha256>> {
        let mut mac = Hmac::<Sha256>::new_from_slice(self.0.expose()).ok()?;
        mac.update(sealed.as_bytes());
        Some(mac)
    }
}

// === impl Holder ===

impl Holder {
    fn name(&self) -> &str {
        match self {
            Self::Node(name) | Self::Nodes(name) | Self::Viewer(name) | Self::Operator(name) => name,
        }
    }

    fn is_for_every_node(&self) -> bool {
        matches!(self, Self::Nodes(prefix) if prefix.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(byte: u8) -> TokenKey {
        TokenKey::new(Secret::new(vec![byte; 32])).unwrap()
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn a_token_is_good_for_its_holder_until_it_expires() {
        let holder = Holder::Node("n1".to_owned());
        let token = key(1).issue(holder.clone(), at(100)).unwrap();
        assert!(token.expose().starts_with("landfall."));
        assert_eq!(key(1).check(token.expose(), at(99)).unwrap(), holder);
        assert!(matches!(key(1).check(token.expose(), at(100)), Err(TokenError::Expired)));
        assert!(matches!(key(2).check(token.expose(), at(99)), Err(TokenError::Foreign)));
    }

    #[test]
    fn no_part_of_a_token_can_be_changed() {
        let token = key(1).issue(Holder::Node("n1".to_owned()), at(100)).unwrap();
        let forged = BASE64.encode(br#"{"kind":"operator","name":"me","expires":100}"#);
        let seal = token.expose().rsplit_once('.').unwrap().1;
        for bad in [
            String::new(),
            "landfall".to_owned(),
            format!("landfall.{forged}.{seal}"),
            format!("landfall.{forged}."),
            "x".repeat(5000),
        ] {
            assert!(matches!(key(1).check(&bad, at(1)), Err(TokenError::Foreign)), "{bad}");
        }
    }

    #[test]
    fn weak_keys_and_odd_names_are_refused() {
        assert!(matches!(TokenKey::new(Secret::new(vec![0; 31])), Err(TokenError::ShortKey)));
        for odd in [
            Holder::Node("a/b".to_owned()),
            Holder::Node(String::new()),
            Holder::Viewer(String::new()),
            Holder::Nodes("-a".to_owned()),
            Holder::Nodes("a*".to_owned()),
        ] {
            assert!(matches!(key(1).issue(odd, at(1)), Err(TokenError::Name)));
        }
        assert!(key(1).issue(Holder::Nodes(String::new()), at(1)).is_ok());
    }
}
