//! Image references.

use landfall_fetch::{Algorithm, Digest};

const MAX_NAME: usize = 512;

/// `host/repository@sha256:…`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    pub host: String,
    pub repository: String,
    pub digest: Digest,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReferenceError {
    #[error("`{name}` does not contain a registry and a repository")]
    Name { name: String },
    #[error("`{name}` is not named by its digest (`@sha256:…`): a tag can mean anything tomorrow")]
    NoDigest { name: String },
}

// === impl Reference ===

impl Reference {
    pub fn parse(name: &str) -> Result<Self, ReferenceError> {
        let shown = || name.chars().take(MAX_NAME).collect::<String>();
        let (path, digest) =
            name.split_once('@').ok_or_else(|| ReferenceError::NoDigest { name: shown() })?;
        let digest = digest.strip_prefix("sha256:").and_then(|hex| Digest::new(Algorithm::Sha256, hex));
        let digest = digest.ok_or_else(|| ReferenceError::NoDigest { name: shown() })?;
        let invalid = || ReferenceError::Name { name: shown() };
        let (host, repository) = path.split_once('/').ok_or_else(invalid)?;
        // A tag beside a digest is ignored.
        let repository = match repository.rsplit_once(':') {
            Some((repository, tag)) if !tag.contains('/') => repository,
            _ => repository,
        };
        let is_host = host.contains('.') || host.contains(':') || host == "localhost";
        if !is_host || !is_path(host, ".:-[]") || !is_path(repository, "._-/") || name.len() > MAX_NAME {
            return Err(invalid());
        }
        if repository.split('/').any(|part| part.is_empty() || part.starts_with('.')) {
            return Err(invalid());
        }
        Ok(Self { host: host.to_owned(), repository: repository.to_owned(), digest })
    }
}

pub(super) fn is_path(text: &str, more: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || more.contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_apart() {
        let digest = "a".repeat(64);
        let read = Reference::parse(&format!("reg.corp:5000/a/b:v1@sha256:{digest}")).unwrap();
        assert_eq!((read.host.as_str(), read.repository.as_str()), ("reg.corp:5000", "a/b"));
        assert_eq!(read.digest.hex(), digest);
    }

    #[test]
    fn what_is_no_name_is_refused() {
        let digest = "a".repeat(64);
        for name in ["reg.corp/a:latest".to_owned(), format!("reg.corp/a@sha256:{}", &digest[1..])] {
            assert!(matches!(Reference::parse(&name), Err(ReferenceError::NoDigest { .. })), "{name}");
        }
        for path in ["a/b", "reg.corp", "reg.corp/../x", "reg.corp//x", "reg.corp/a?b=c", "r.c/a b"] {
            let name = format!("{path}@sha256:{digest}");
            assert!(matches!(Reference::parse(&name), Err(ReferenceError::Name { .. })), "{name}");
        }
    }
}
