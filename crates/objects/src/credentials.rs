//! Who we are to a store: a key's name and its secret, from a file as Amazon's own tools keep it.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use landfall_model::Secret;

/// A name, a secret and a session token of about a kilobyte.
const MAX_FILE: u64 = 64 << 10;
const PROFILE: &str = "default";

/// A key, and its secret.
#[expect(missing_debug_implementations, reason = "holds a secret")]
pub struct Credentials {
    /// Not a secret: it goes over the wire in the clear.
    pub key_id: String,
    pub secret: Secret<String>,
    /// With keys that are lent for some hours.
    pub session: Option<Secret<String>>,
}

#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    #[error("cannot read the credentials in `{}`", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(
        "`{}` holds no credentials: `aws_access_key_id = …` and `aws_secret_access_key = …`, on lines of their own",
        path.display()
    )]
    Missing { path: PathBuf },
}

// === impl Credentials ===

impl Credentials {
    pub fn read(path: &Path) -> Result<Self, CredentialsError> {
        let failed = |source| CredentialsError::Read { path: path.to_owned(), source };
        let mut text = String::new();
        File::open(path).map_err(failed)?.take(MAX_FILE).read_to_string(&mut text).map_err(failed)?;
        let text = Secret::new(text);
        Self::parse(text.expose()).ok_or_else(|| CredentialsError::Missing { path: path.to_owned() })
    }

    /// The profile `default`, or what stands outside of any.
    fn parse(text: &str) -> Option<Self> {
        let (mut ours, mut key_id, mut secret, mut session) = (true, None, None, None);
        for line in text.lines().map(str::trim) {
            if let Some(profile) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
                ours = profile.trim() == PROFILE;
            }
            let Some((name, value)) = line.split_once('=').filter(|_| ours) else { continue };
            let value = value.trim();
            match name.trim() {
                _ if value.is_empty() || value.bytes().any(|byte| byte.is_ascii_control()) => {}
                "aws_access_key_id" => key_id = Some(value.to_owned()),
                "aws_secret_access_key" => secret = Some(Secret::new(value.to_owned())),
                "aws_session_token" => session = Some(Secret::new(value.to_owned())),
                _ => {}
            }
        }
        Some(Self { key_id: key_id?, secret: secret?, session })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_profile_is_read_and_no_other() {
        let text = "[other]\naws_access_key_id=A\naws_secret_access_key=x\n\n[default]\naws_access_key_id = B\n\
                    aws_secret_access_key = y=z\naws_session_token=t\n";
        let read = Credentials::parse(text).unwrap();
        assert_eq!((read.key_id.as_str(), read.secret.expose().as_str()), ("B", "y=z"));
        assert_eq!(read.session.unwrap().expose(), "t");
        let bare = Credentials::parse("aws_access_key_id=A\naws_secret_access_key=x\n").unwrap();
        assert_eq!((bare.key_id.as_str(), bare.session.is_none()), ("A", true));
        for bad in
            ["", "[default]\naws_access_key_id=A\n", "[other]\naws_access_key_id=A\naws_secret_access_key=x"]
        {
            assert!(Credentials::parse(bad).is_none(), "{bad}");
        }
    }
}
