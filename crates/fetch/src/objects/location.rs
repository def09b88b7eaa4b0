//! The location of a bucket, as users write it.

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

use super::dialect::Dialect;
use super::request::{Slash, escape};

/// Length limits for bucket names in all stores, and for account names in Azure.
const BUCKET_NAME: std::ops::RangeInclusive<usize> = 3..=63;
const ACCOUNT_NAME: std::ops::RangeInclusive<usize> = 3..=24;
/// Keys may have 1024 bytes; the rest is for the part after the prefix.
const MAX_PREFIX: usize = 512;
/// Default region of an Amazon bucket, the same as in Amazon's own tools.
const DEFAULT_REGION: &str = "us-east-1";

/// A bucket, and the prefix in it: `s3://BUCKET[/PREFIX][?region=R][&endpoint=URL]`, `gs://BUCKET[/PREFIX]`,
/// `az://CONTAINER[/PREFIX]?account=NAME[&endpoint=URL]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    pub bucket: String,
    /// Empty, or with a trailing slash.
    pub prefix: String,
    pub(crate) scheme: Scheme,
    pub(crate) dialect: Dialect,
    /// `https://HOST[:PORT]`, without a trailing slash. The path before the keys is empty, `/BUCKET`, or
    /// `/ACCOUNT/BUCKET`.
    pub(crate) origin: String,
    path: String,
}

/// A text that is not a valid bucket location.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid bucket location `{shown}`: {why}")]
pub struct InvalidLocation {
    shown: String,
    why: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scheme {
    Amazon,
    Google,
    Azure,
}

/// The options after `?`.
#[derive(Default)]
struct Options<'a> {
    region: Option<&'a str>,
    endpoint: Option<String>,
    account: Option<&'a str>,
}

// === impl Location ===

impl Location {
    /// Returns host and port of a request, as in the `host` header.
    pub(crate) fn host(&self) -> &str {
        self.origin.split_once("://").map_or("", |(_, host)| host)
    }

    /// Returns the region for signatures; empty for Azure.
    pub(crate) fn region(&self) -> &str {
        match &self.dialect {
            Dialect::S3 { region } => region,
            Dialect::Azure { .. } => "",
        }
    }

    /// Returns the storage account; empty for other stores.
    pub(crate) fn account(&self) -> &str {
        match &self.dialect {
            Dialect::Azure { account } => account,
            Dialect::S3 { .. } => "",
        }
    }

    /// Returns the path of an object, or of the bucket itself, in the encoding of the request.
    pub(crate) fn path(&self, key: Option<&str>) -> String {
        match (key, &self.dialect) {
            (Some(key), _) => {
                format!("{}/{}", self.path, escape(&format!("{}{key}", self.prefix), Slash::Kept))
            }
            (None, Dialect::S3 { .. }) => format!("{}/", self.path),
            (None, Dialect::Azure { .. }) => self.path.clone(),
        }
    }
}

impl FromStr for Location {
    type Err = InvalidLocation;

    fn from_str(text: &str) -> Result<Self, InvalidLocation> {
        parse(text).map_err(|why| InvalidLocation { shown: shown(text), why })
    }
}

/// Removes possible secrets from a text: a password before `@`, a shared access signature after `?`.
fn shown(text: &str) -> String {
    let (login, place) = text.rsplit_once('@').map_or(("", text), |(_, place)| ("…@", place));
    let (place, query) = place.split_once('?').map_or((place, ""), |(place, _)| (place, "?…"));
    format!("{login}{place}{query}")
}

/// For messages; sufficient to find the bucket.
impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}/{}", self.scheme.name(), self.bucket, self.prefix)?;
        match &self.dialect {
            Dialect::S3 { .. } => Ok(()),
            Dialect::Azure { account } => write!(f, "?account={account}"),
        }
    }
}

fn parse(text: &str) -> Result<Location, &'static str> {
    let (scheme, rest) = text.split_once("://").ok_or("it begins with `s3://`, `gs://` or `az://`")?;
    let scheme = Scheme::named(scheme).ok_or("known are `s3://`, `gs://` and `az://`")?;
    let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (bucket, prefix) = place.split_once('/').unwrap_or((place, ""));
    scheme.check_bucket(bucket)?;
    let prefix = prefix.trim_matches('/');
    let odd = |part: &str| part.is_empty() || part == "." || part == "..";
    if prefix.len() > MAX_PREFIX || (!prefix.is_empty() && prefix.split('/').any(odd)) {
        return Err("a prefix is one or more names with slashes between them");
    }
    let options = Options::parse(scheme, query)?;
    let (dialect, origin, path) = match (scheme, options.account) {
        (Scheme::Azure, Some(account)) => azure(bucket, account, &options),
        (Scheme::Azure, None) => return Err("a container is in a storage account: `?account=NAME`"),
        (Scheme::Amazon, _) => amazon(bucket, &options),
        (Scheme::Google, _) => google(bucket, &options),
    };
    let prefix = if prefix.is_empty() { String::new() } else { format!("{prefix}/") };
    Ok(Location { bucket: bucket.to_owned(), prefix, scheme, dialect, origin, path })
}

fn amazon(bucket: &str, options: &Options<'_>) -> (Dialect, String, String) {
    let region = options.region.unwrap_or(DEFAULT_REGION);
    let by_path = format!("/{bucket}");
    let (origin, path) = match &options.endpoint {
        Some(endpoint) => (endpoint.clone(), by_path),
        // A dot in the name would not match the certificate.
        None if bucket.contains('.') => (format!("https://s3.{region}.amazonaws.com"), by_path),
        None => (format!("https://{bucket}.s3.{region}.amazonaws.com"), String::new()),
    };
    (Dialect::S3 { region: region.to_owned() }, origin, path)
}

fn google(bucket: &str, options: &Options<'_>) -> (Dialect, String, String) {
    let (region, origin) = match &options.endpoint {
        Some(endpoint) => (options.region.unwrap_or(DEFAULT_REGION), endpoint.as_str()),
        None => ("auto", "https://storage.googleapis.com"),
    };
    (Dialect::S3 { region: region.to_owned() }, origin.to_owned(), format!("/{bucket}"))
}

/// An account has its own host name, or is the first path segment on a server without such host names.
fn azure(bucket: &str, account: &str, options: &Options<'_>) -> (Dialect, String, String) {
    let own = format!("https://{account}.blob.core.windows.net");
    let origin = options.endpoint.clone().unwrap_or(own);
    let host = origin.split_once("://").map_or("", |(_, host)| host);
    let has_host = host.strip_prefix(account).is_some_and(|rest| rest.starts_with('.'));
    let path = if has_host { format!("/{bucket}") } else { format!("/{account}/{bucket}") };
    (Dialect::Azure { account: account.to_owned() }, origin, path)
}

// === impl Scheme ===

impl Scheme {
    const ALL: [Self; 3] = [Self::Amazon, Self::Google, Self::Azure];

    fn name(self) -> &'static str {
        match self {
            Self::Amazon => "s3",
            Self::Google => "gs",
            Self::Azure => "az",
        }
    }

    fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scheme| scheme.name() == name)
    }

    fn check_bucket(self, name: &str) -> Result<(), &'static str> {
        let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let good = BUCKET_NAME.contains(&name.len());
        match self {
            Self::Amazon | Self::Google
                if good && name.bytes().all(|byte| is_plain(byte) || byte == b'.') =>
            {
                Ok(())
            }
            Self::Azure if good && name.bytes().all(is_plain) && !name.split('-').any(str::is_empty) => {
                Ok(())
            }
            Self::Azure => Err(
                "a container's name is 3 to 63 lower-case letters and digits, with single hyphens between them",
            ),
            _ => Err("a bucket's name is 3 to 63 lower-case letters, digits, dots and hyphens"),
        }
    }
}

// === impl Options ===

impl<'a> Options<'a> {
    fn parse(scheme: Scheme, query: &'a str) -> Result<Self, &'static str> {
        let mut options = Self::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match (scheme, pair.split_once('=')) {
                (Scheme::Amazon | Scheme::Google, Some(("region", value))) if is_name(value) => {
                    options.region = Some(value);
                }
                (Scheme::Azure, Some(("account", value))) if is_account(value) => {
                    options.account = Some(value);
                }
                (Scheme::Azure, Some(("account", _))) => {
                    return Err("an account's name is 3 to 24 lower-case letters and digits");
                }
                (_, Some(("endpoint", value))) => {
                    let endpoint = endpoint(value.trim_end_matches('/'));
                    options.endpoint = Some(endpoint.ok_or("an endpoint is `https://HOST[:PORT]`")?);
                }
                (Scheme::Azure, _) => return Err("after `?` come `account=NAME` and `endpoint=URL`"),
                _ => return Err("after `?` come `region=NAME` and `endpoint=URL`"),
            }
        }
        Ok(options)
    }
}

pub(crate) fn is_account(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    ACCOUNT_NAME.contains(&text.len()) && text.bytes().all(is_plain)
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

/// Normalizes `https://HOST[:PORT]` like HTTP clients do.
///
/// Clients send the host in lower case and without the default port; a signature of another spelling would be
/// rejected.
fn endpoint(text: &str) -> Option<String> {
    let text = text.to_ascii_lowercase();
    let (scheme, place) = text.split_once("://")?;
    let expected = match scheme {
        "https" => 443,
        "http" => 80,
        _ => return None,
    };
    let (host, port) = match place.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, port.parse::<u16>().ok()?),
        _ => (place, expected),
    };
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    let host = match host.strip_prefix('[') {
        Some(address) => format!("[{}]", address.strip_suffix(']')?.parse::<Ipv6Addr>().ok()?),
        None if !host.is_empty() && host.bytes().all(is_plain) => host.to_owned(),
        None => return None,
    };
    let port = if port == expected { String::new() } else { format!(":{port}") };
    Some(format!("{scheme}://{host}{port}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_found_where_their_owners_keep_them() {
        for (text, url, signed_for, shown) in [
            ("s3://logs", "https://logs.s3.us-east-1.amazonaws.com/k", "us-east-1", "s3://logs/"),
            (
                "s3://logs/a/b/?region=eu-west-1",
                "https://logs.s3.eu-west-1.amazonaws.com/a/b/k",
                "eu-west-1",
                "s3://logs/a/b/",
            ),
            ("s3://my.logs", "https://s3.us-east-1.amazonaws.com/my.logs/k", "us-east-1", "s3://my.logs/"),
            (
                "s3://logs?endpoint=https://minio:9000/",
                "https://minio:9000/logs/k",
                "us-east-1",
                "s3://logs/",
            ),
            ("s3://logs?endpoint=http://[::1]:9000", "http://[::1]:9000/logs/k", "us-east-1", "s3://logs/"),
            // The path as it is sent, independent of the notation.
            (
                "s3://logs?endpoint=https://Minio.Corp:443/",
                "https://minio.corp/logs/k",
                "us-east-1",
                "s3://logs/",
            ),
            ("s3://logs?endpoint=http://minio:80", "http://minio/logs/k", "us-east-1", "s3://logs/"),
            ("s3://logs?endpoint=http://minio:443", "http://minio:443/logs/k", "us-east-1", "s3://logs/"),
            (
                "s3://logs?endpoint=https://[FD00:0::1]:443",
                "https://[fd00::1]/logs/k",
                "us-east-1",
                "s3://logs/",
            ),
            (
                "az://logs?account=fleet1&endpoint=https://Fleet1.Blob.corp",
                "https://fleet1.blob.corp/logs/k",
                "fleet1",
                "az://logs/?account=fleet1",
            ),
            ("gs://logs/fleet", "https://storage.googleapis.com/logs/fleet/k", "auto", "gs://logs/fleet/"),
            (
                "az://logs?account=fleet1",
                "https://fleet1.blob.core.windows.net/logs/k",
                "fleet1",
                "az://logs/?account=fleet1",
            ),
            (
                "az://my-logs/a/b?account=fleet1&endpoint=https://fleet1.blob.core.chinacloudapi.cn/",
                "https://fleet1.blob.core.chinacloudapi.cn/my-logs/a/b/k",
                "fleet1",
                "az://my-logs/a/b/?account=fleet1",
            ),
            (
                "az://logs?endpoint=http://fleet10.local:10000&account=fleet1",
                "http://fleet10.local:10000/fleet1/logs/k",
                "fleet1",
                "az://logs/?account=fleet1",
            ),
        ] {
            let location: Location = text.parse().unwrap();
            let (Dialect::S3 { region: name } | Dialect::Azure { account: name }) = &location.dialect;
            assert_eq!(format!("{}{}", location.origin, location.path(Some("k"))), url, "{text}");
            assert_eq!((name.as_str(), location.to_string().as_str()), (signed_for, shown), "{text}");
        }
    }

    #[test]
    fn what_names_no_bucket_is_refused() {
        for bad in [
            "",
            "logs",
            "s3://",
            "s3://UPPER",
            "s3://ab",
            "s3://logs/../other",
            "s3://logs/x//y",
            "s3://logs?region=",
            "s3://logs?endpoint=ftp://x",
            "s3://logs?endpoint=https://user:pass@host",
            "s3://logs?endpoint=https://host/path",
            "s3://logs?endpoint=https://",
            "s3://logs?endpoint=https://host:",
            "s3://logs?endpoint=https://host:99999",
            "s3://logs?endpoint=https://fd00::1",
            "s3://logs?endpoint=https://[fd00::1",
            "s3://logs?acl=public",
            "s3://logs?account=fleet1",
            "ftp://logs",
            "az://logs",
            "az://my.logs?account=fleet1",
            "az://my--logs?account=fleet1",
            "az://-logs?account=fleet1",
            "az://logs?account=Fleet",
            "az://logs?account=fl",
            "az://logs?account=fleet1&region=eu-west-1",
            "az://logs?account=fleet1&sig=x",
        ] {
            assert!(bad.parse::<Location>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_secret_that_was_pasted_along_is_not_shown() {
        for (text, shown) in [
            (
                "https://fleet.blob.core.windows.net/logs?sv=1&sig=canary",
                "`https://fleet.blob.core.windows.net/logs?…`",
            ),
            ("az://logs?account=fleet1&sig=canary", "`az://logs?…`"),
            ("s3://canary:can?ary@logs/prod", "`…@logs/prod`"),
            ("s3://logs?endpoint=https://canary:canary@minio.corp", "`…@minio.corp`"),
            ("s3://LOGS", "`s3://LOGS`"),
        ] {
            let said = text.parse::<Location>().unwrap_err();
            assert!(said.to_string().starts_with(&format!("invalid bucket location {shown}: ")), "{said}");
            assert!(!format!("{said} {said:?}").contains("canary"), "{said:?}");
        }
    }
}
