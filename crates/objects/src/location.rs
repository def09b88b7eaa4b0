//! Where a bucket is, as users write it.

use std::fmt;
use std::str::FromStr;

/// Amazon's own rule; nobody's is wider.
const BUCKET_NAME: std::ops::RangeInclusive<usize> = 3..=63;
/// Keys may have 1024 bytes; the rest is for what comes after the prefix.
const MAX_PREFIX: usize = 512;
/// Where an Amazon bucket is if nobody says, as their own tools have it.
const DEFAULT_REGION: &str = "us-east-1";

/// A bucket, and the folder in it that is ours: `s3://BUCKET[/PREFIX][?region=R][&endpoint=URL]`, `gs://BUCKET[/PREFIX]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    pub bucket: String,
    /// Empty, or with a slash at its end.
    pub prefix: String,
    pub region: String,
    /// `https://HOST[:PORT]`, without a slash at its end, and what comes before keys in the path: nothing, or `/BUCKET`.
    pub(crate) origin: String,
    pub(crate) path: String,
}

/// A text that names no bucket.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` names no bucket: {why}")]
pub struct InvalidLocation {
    text: String,
    why: &'static str,
}

// === impl Location ===

impl Location {
    /// The host and port a request is for, as it stands in the `host` header.
    pub(crate) fn host(&self) -> &str {
        self.origin.split_once("://").map_or("", |(_, host)| host)
    }
}

impl FromStr for Location {
    type Err = InvalidLocation;

    fn from_str(text: &str) -> Result<Self, InvalidLocation> {
        let invalid = |why| InvalidLocation { text: text.to_owned(), why };
        let (scheme, rest) = text.split_once("://").ok_or_else(|| invalid("it begins with `s3://`"))?;
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (bucket, prefix) = place.split_once('/').unwrap_or((place, ""));
        let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-".contains(&byte);
        if !BUCKET_NAME.contains(&bucket.len()) || !bucket.bytes().all(is_plain) {
            return Err(invalid("a bucket's name is 3 to 63 lower-case letters, digits, dots and hyphens"));
        }
        let prefix = prefix.trim_matches('/');
        let odd = |part: &str| part.is_empty() || part == "." || part == "..";
        if prefix.len() > MAX_PREFIX || (!prefix.is_empty() && prefix.split('/').any(odd)) {
            return Err(invalid("a prefix is one or more names with slashes between them"));
        }
        let (mut region, mut endpoint) = (None, None);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("region", value)) if is_name(value) => region = Some(value.to_owned()),
                Some(("endpoint", value)) => endpoint = Some(value.trim_end_matches('/').to_owned()),
                _ => return Err(invalid("after `?` come `region=NAME` and `endpoint=URL`")),
            }
        }
        if let Some(endpoint) = &endpoint {
            let host = endpoint.strip_prefix("https://").or_else(|| endpoint.strip_prefix("http://"));
            let is_host = |byte: u8| byte.is_ascii_alphanumeric() || b".-:[]_".contains(&byte);
            if host.is_none_or(|host| host.is_empty() || !host.bytes().all(is_host)) {
                return Err(invalid("an endpoint is `https://HOST[:PORT]`"));
            }
        }
        let region = region.unwrap_or_else(|| DEFAULT_REGION.to_owned());
        let by_path = format!("/{bucket}");
        let (region, origin, path) = match (scheme, endpoint) {
            ("s3" | "gs", Some(endpoint)) => (region, endpoint, by_path),
            // A dot in the name would not fit the certificate.
            ("s3", None) if bucket.contains('.') => {
                let origin = format!("https://s3.{region}.amazonaws.com");
                (region, origin, by_path)
            }
            ("s3", None) => {
                let origin = format!("https://{bucket}.s3.{region}.amazonaws.com");
                (region, origin, String::new())
            }
            ("gs", None) => ("auto".to_owned(), "https://storage.googleapis.com".to_owned(), by_path),
            _ => return Err(invalid("known are `s3://` and `gs://`")),
        };
        let prefix = if prefix.is_empty() { String::new() } else { format!("{prefix}/") };
        Ok(Self { bucket: bucket.to_owned(), prefix, region, origin, path })
    }
}

/// As people read it; good enough to find the bucket.
impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s3://{}/{}", self.bucket, self.prefix)
    }
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_found_where_their_owners_keep_them() {
        for (text, origin, path, prefix, region) in [
            ("s3://logs", "https://logs.s3.us-east-1.amazonaws.com", "", "", "us-east-1"),
            (
                "s3://logs/a/b/?region=eu-west-1",
                "https://logs.s3.eu-west-1.amazonaws.com",
                "",
                "a/b/",
                "eu-west-1",
            ),
            ("s3://my.logs", "https://s3.us-east-1.amazonaws.com", "/my.logs", "", "us-east-1"),
            ("s3://logs?endpoint=https://minio:9000/", "https://minio:9000", "/logs", "", "us-east-1"),
            ("s3://logs?endpoint=http://[::1]:9000", "http://[::1]:9000", "/logs", "", "us-east-1"),
            ("gs://logs/fleet", "https://storage.googleapis.com", "/logs", "fleet/", "auto"),
        ] {
            let location: Location = text.parse().unwrap();
            assert_eq!(
                (
                    location.origin.as_str(),
                    location.path.as_str(),
                    location.prefix.as_str(),
                    location.region.as_str()
                ),
                (origin, path, prefix, region),
                "{text}"
            );
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
            "s3://logs?acl=public",
            "az://logs",
        ] {
            assert!(bad.parse::<Location>().is_err(), "{bad}");
        }
    }
}
