//! Credentials of a store from a file.
//!
//! For S3 it contains a key ID and its secret in the format of Amazon's tools. For Azure it contains the key of an
//! account or a shared access signature, as the portal shows them.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use landfall_model::Secret;

use super::location::is_account;

/// Enough for an ID, a secret and a session token of about 1 KB.
const MAX_FILE: u64 = 64 << 10;
const PROFILE: &str = "default";
const FOR_S3: &str = "`aws_access_key_id = …` and `aws_secret_access_key = …`, on lines of their own";
const FOR_AZURE: &str = "a connection string, or `azure_storage_account_key = …` or `azure_storage_sas_token = …`, on a line of its own";

/// For S3: a key ID, and its secret.
pub(crate) struct KeyPair {
    /// Not a secret: requests contain it in plain text.
    pub id: String,
    pub secret: Secret<String>,
    /// Session token of temporary keys.
    pub session: Option<Secret<String>>,
}

/// Source of the credentials of a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credentials {
    /// Read at each use, because temporary keys are renewed.
    File(PathBuf),
    /// Identity that the cloud provides to this workload or this machine.
    Cloud,
}

/// Credentials for Azure.
pub(crate) enum Access {
    /// Key of the complete account.
    Key(Secret<Vec<u8>>),
    /// A shared access signature: a query that is a password.
    Signature(Secret<String>),
    /// Temporary token of Entra.
    Token(Secret<String>),
}

#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    #[error("cannot read the credentials in `{}`", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("`{}` contains no credentials: {expected}", path.display())]
    Missing { path: PathBuf, expected: &'static str },
    #[error("`{}` is for the storage account `{found}`, not for `{wanted}`", path.display())]
    Account { path: PathBuf, found: String, wanted: String },
    #[error("the cloud does not say who this workload or machine is: {why}")]
    Identity { why: String },
    #[error("the cloud did not say within {seconds} s who this workload or machine is")]
    Late { seconds: u64 },
}

// === impl Credentials ===

impl From<PathBuf> for Credentials {
    fn from(path: PathBuf) -> Self {
        Self::File(path)
    }
}

// === impl KeyPair ===

impl KeyPair {
    pub(crate) fn read(path: &Path) -> Result<Self, CredentialsError> {
        let text = read(path)?;
        let missing = || CredentialsError::Missing { path: path.to_owned(), expected: FOR_S3 };
        Self::parse(text.expose()).ok_or_else(missing)
    }

    fn parse(text: &str) -> Option<Self> {
        let (mut id, mut secret, mut session) = (None, None, None);
        for (name, value) in lines(text).filter_map(pair) {
            match name {
                "aws_access_key_id" => id = Some(value.to_owned()),
                "aws_secret_access_key" => secret = Some(Secret::new(value.to_owned())),
                "aws_session_token" => session = Some(Secret::new(value.to_owned())),
                _ => {}
            }
        }
        Some(Self { id: id?, secret: secret?, session })
    }
}

// === impl Access ===

impl Access {
    /// Reads credentials for this account; if the file names an account, it must be the same.
    pub(crate) fn read(path: &Path, account: &str) -> Result<Self, CredentialsError> {
        let text = read(path)?;
        let (found, access) = Self::parse(text.expose());
        match found {
            Some(found) if found != account => {
                let wanted = account.to_owned();
                Err(CredentialsError::Account { path: path.to_owned(), found, wanted })
            }
            _ => {
                access.ok_or_else(|| CredentialsError::Missing { path: path.to_owned(), expected: FOR_AZURE })
            }
        }
    }

    /// Returns the account, if it is given, and its credentials. A key takes precedence over a signature.
    fn parse(text: &str) -> (Option<String>, Option<Self>) {
        let (mut account, mut key, mut signature) = (None, None, None);
        // A connection string consists of such pairs as well, on one line.
        for (name, value) in lines(text).flat_map(|line| line.split(';')).filter_map(pair) {
            match name.to_ascii_lowercase().as_str() {
                // An invalid value is not shown, because it may be a misplaced key.
                "accountname" | "azure_storage_account" if is_account(value) => {
                    account = Some(value.to_owned());
                }
                "accountkey" | "azure_storage_account_key" => {
                    key = BASE64.decode(value).ok().filter(|key| !key.is_empty()).map(Secret::new);
                }
                "sharedaccesssignature" | "azure_storage_sas_token" => {
                    let value = value.trim_start_matches('?');
                    let is_query = |byte: u8| byte.is_ascii_graphic() && !b"#\"<>".contains(&byte);
                    let is_signature = value.bytes().all(is_query) && value.contains("sig=");
                    signature = is_signature.then(|| Secret::new(value.to_owned()));
                }
                _ => {}
            }
        }
        (account, key.map(Self::Key).or(signature.map(Self::Signature)))
    }
}

fn read(path: &Path) -> Result<Secret<String>, CredentialsError> {
    let failed = |source| CredentialsError::Read { path: path.to_owned(), source };
    let mut text = String::new();
    File::open(path).map_err(failed)?.take(MAX_FILE).read_to_string(&mut text).map_err(failed)?;
    Ok(Secret::new(text))
}

/// Returns the lines of the profile `default`, and those outside of any profile.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    let mut ours = true;
    text.lines().map(str::trim).filter(move |line| {
        if let Some(profile) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            ours = profile.trim() == PROFILE;
        }
        ours
    })
}

/// Parses `name = value`; `None` without a value.
fn pair(text: &str) -> Option<(&str, &str)> {
    let (name, value) = text.split_once('=')?;
    let value = value.trim();
    let is_value = !value.is_empty() && !value.bytes().any(|byte| byte.is_ascii_control());
    is_value.then_some((name.trim(), value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_profile_is_read_and_no_other() {
        let text = "[other]\naws_access_key_id=A\naws_secret_access_key=x\n\n[default]\naws_access_key_id = B\n\
                    aws_secret_access_key = y=z\naws_session_token=t\n";
        let read = KeyPair::parse(text).unwrap();
        assert_eq!((read.id.as_str(), read.secret.expose().as_str()), ("B", "y=z"));
        assert_eq!(read.session.unwrap().expose(), "t");
        let bare = KeyPair::parse("aws_access_key_id=A\naws_secret_access_key=x\n").unwrap();
        assert_eq!((bare.id.as_str(), bare.session.is_none()), ("A", true));
        for bad in
            ["", "[default]\naws_access_key_id=A\n", "[other]\naws_access_key_id=A\naws_secret_access_key=x"]
        {
            assert!(KeyPair::parse(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn azure_is_known_by_what_its_portal_shows() {
        let key = "DefaultEndpointsProtocol=https;AccountName=fleet;AccountKey=c2VhIGFuZCBzaG9yZQ==;EndpointSuffix=core.windows.net\n";
        let both = format!("{} ;SharedAccessSignature=sv=1&sig=x", key.trim());
        for (text, account) in [
            (key, Some("fleet")),
            (&both, Some("fleet")),
            ("azure_storage_account_key = c2VhIGFuZCBzaG9yZQ==\n", None),
            (
                "[default]\r\nazure_storage_account = fleet\r\nazure_storage_account_key=c2VhIGFuZCBzaG9yZQ==\r\n",
                Some("fleet"),
            ),
        ] {
            let (found, access) = Access::parse(text);
            assert_eq!(found.as_deref(), account, "{text}");
            assert!(matches!(access, Some(Access::Key(key)) if key.expose() == b"sea and shore"), "{text}");
        }
        for text in [
            "BlobEndpoint=https://fleet.blob.core.windows.net/;SharedAccessSignature=sv=2021-12-02&sp=rw&sig=a%2Bb%3D",
            "azure_storage_sas_token = ?sv=2021-12-02&sp=rw&sig=a%2Bb%3D",
        ] {
            let access = Access::parse(text).1;
            let Some(Access::Signature(query)) = access else { panic!("{text}") };
            assert_eq!(query.expose(), "sv=2021-12-02&sp=rw&sig=a%2Bb%3D");
        }
    }

    #[test]
    fn a_file_for_azure_without_a_way_in_is_refused_without_its_words() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("credentials");
        for (text, why) in [
            ("", "contains no credentials"),
            ("AccountName=fleet", "contains no credentials"),
            ("aws_access_key_id=canary\naws_secret_access_key=canary", "contains no credentials"),
            ("AccountKey=canary!", "contains no credentials"),
            ("SharedAccessSignature=canary", "contains no credentials"),
            ("azure_storage_sas_token = sig=canary#x", "contains no credentials"),
            ("AccountName=x,AccountKey=canary", "contains no credentials"),
            ("AccountName=other;AccountKey=Y2FuYXJ5", "is for the storage account `other`, not for `fleet`"),
        ] {
            std::fs::write(&file, text).unwrap();
            let Err(error) = Access::read(&file, "fleet") else { panic!("{text}") };
            let said = format!("{error} {error:?}");
            assert!(said.contains(why) && !said.contains("canary") && !said.contains("Y2Fu"), "{said}");
        }
    }
}
