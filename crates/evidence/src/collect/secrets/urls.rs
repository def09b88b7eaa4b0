//! Passwords in URLs.

use landfall_redact::Kind;

use super::encoded;
use super::values::Values;

/// Finds the passwords of all URLs in a text.
pub(super) fn search(text: &str, values: &mut Values) {
    let mut rest = text;
    while let Some(start) = rest.find("://") {
        rest = &rest[start + 3..];
        let end = rest.find(|c: char| c.is_whitespace() || "\"'`<>\\".contains(c)).unwrap_or(rest.len());
        if let Some(password) = password(&rest[..end]) {
            add(password, values);
        }
    }
}

/// Finds the password in `user:password@host`, without a scheme.
pub(super) fn login(text: &str, values: &mut Values) {
    if let Some((user, _)) = text.rsplit_once('@')
        && let Some((_, password)) = user.split_once(':')
    {
        add(password, values);
    }
}

fn add(password: &str, values: &mut Values) {
    values.secret(Kind::PASSWORD, password);
    let decoded = encoded::percent(password);
    values.secret(Kind::PASSWORD, &String::from_utf8_lossy(&decoded));
}

/// Returns the password of a URL without its scheme.
fn password(url: &str) -> Option<&str> {
    let authority = &url[..url.find(['/', '?', '#']).unwrap_or(url.len())];
    let user = if let Some((user, _)) = authority.rsplit_once('@') {
        user
    } else {
        // A password may contain a slash; a port consists of digits.
        let (_, port) = authority.split_once(':')?;
        if port.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        url.rsplit_once('@')?.0
    };
    user.split_once(':').map(|(_, password)| password)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_passwords() {
        for (url, expected) in [
            ("user:hunter22@proxy:3128", Some("hunter22")),
            ("user:a@b:c@proxy/", Some("a@b:c")),
            ("user:a/b@proxy", Some("a/b")),
            ("proxy:3128/a@b", None),
            ("user@proxy", None),
            ("host/path", None),
        ] {
            assert_eq!(password(url), expected, "{url}");
        }
    }
}
