//! Field names that denote secrets, and values that can be secrets.

use landfall_redact::{KNOWN_MIN, Kind};

/// Complete names, in lower case without separators.
const NAMES: [(&str, Kind); 17] = [
    ("activationkey", Kind::PASSWORD),
    ("apikey", Kind::PASSWORD),
    ("authkey", Kind::PASSWORD),
    ("certificatekey", Kind::CERTIFICATE_KEY),
    ("encryptionkey", Kind::PASSWORD),
    ("identitytoken", Kind::REGISTRY_AUTH),
    ("joinkey", Kind::PASSWORD),
    ("masterkey", Kind::PASSWORD),
    ("passphrase", Kind::PASSWORD),
    ("presharedkey", Kind::PASSWORD),
    ("privatekey", Kind::PRIVATE_KEY),
    ("psk", Kind::PASSWORD),
    ("registrytoken", Kind::REGISTRY_AUTH),
    ("secretid", Kind::PASSWORD),
    ("signingkey", Kind::PASSWORD),
    ("storagekey", Kind::CLOUD_CREDENTIAL),
    ("wepkey", Kind::PASSWORD),
];

/// Name endings, in lower case without separators. The first match decides.
const ENDINGS: [(&str, Kind); 24] = [
    ("accountkey", Kind::CLOUD_CREDENTIAL),
    ("aadclientsecret", Kind::CLOUD_CREDENTIAL),
    ("accesskeysecret", Kind::CLOUD_CREDENTIAL),
    ("apikey", Kind::PASSWORD),
    ("applicationcredentialsecret", Kind::CLOUD_CREDENTIAL),
    ("authtok", Kind::PASSWORD),
    ("certificatekey", Kind::CERTIFICATE_KEY),
    ("clientsecret", Kind::CLOUD_CREDENTIAL),
    ("encryptionkey", Kind::PASSWORD),
    ("passphrase", Kind::PASSWORD),
    ("passphrase1", Kind::PASSWORD),
    ("password", Kind::PASSWORD),
    ("passwordhash", Kind::PASSWORD),
    ("passwd", Kind::PASSWORD),
    ("presharedkey", Kind::PASSWORD),
    ("privatekey", Kind::PRIVATE_KEY),
    ("secret", Kind::PASSWORD),
    ("secretaccesskey", Kind::CLOUD_CREDENTIAL),
    ("secretkey", Kind::CLOUD_CREDENTIAL),
    ("secretkeybase", Kind::PASSWORD),
    ("sessiontoken", Kind::CLOUD_CREDENTIAL),
    ("sharedaccesskey", Kind::CLOUD_CREDENTIAL),
    ("token", Kind::PASSWORD),
    ("wpapsk", Kind::PASSWORD),
];

/// Public fields with the name endings of secrets.
const PUBLIC: [&str; 2] = ["initialclustertoken", "nopasswd"];

/// Last words of names, after a separator: `DB_PASS`, but not `bypass`.
const LAST_WORDS: [&str; 3] = ["pass", "pwd", "psk"];

/// Placeholders and words that are frequent in logs.
const WORDS: [&str; 24] = [
    "changeme",
    "containerd",
    "default",
    "disabled",
    "external",
    "immutable",
    "internal",
    "kubeadmin",
    "kubernetes",
    "localhost",
    "mandatory",
    "openstack",
    "optional",
    "password",
    "passphrase",
    "prohibit-password",
    "redacted",
    "required",
    "sensitive",
    "undefined",
    "unlimited",
    "username",
    "vsphere-creds",
    "without-password",
];

/// Top-level directories: `/etc/landfall/token` names a file, `/9j4AAQSk` may be Base64.
const DIRECTORIES: [&str; 17] = [
    "/bin/", "/boot/", "/data/", "/dev/", "/etc/", "/home/", "/mnt/", "/opt/", "/proc/", "/root/", "/run/",
    "/sbin/", "/srv/", "/sys/", "/tmp/", "/usr/", "/var/",
];

/// Lengths of generated passwords.
const MIN_RANDOM: usize = 12;
const MAX_RANDOM: usize = 128;

/// Returns the kind of the secrets in fields with this name.
pub(super) fn kind(name: &str) -> Option<Kind> {
    let name = name.rsplit(['/', '.']).find(|part| !part.is_empty()).unwrap_or(name);
    let joined: String =
        name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect();
    let joined = joined.trim_end_matches(|c: char| c.is_ascii_digit());
    if PUBLIC.contains(&joined) {
        return None;
    }
    if let Some((_, kind)) = NAMES.iter().find(|(known, _)| *known == joined) {
        return Some(*kind);
    }
    if let Some((_, kind)) = ENDINGS.iter().find(|(ending, _)| joined.ends_with(ending)) {
        return Some(*kind);
    }
    LAST_WORDS.contains(&last_word(name).as_str()).then_some(Kind::PASSWORD)
}

/// Returns the part of a name after its last separator or change to a capital letter, in lower case.
fn last_word(name: &str) -> String {
    let name = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let mut start = 0;
    let mut before = ' ';
    for (place, c) in name.char_indices() {
        if !c.is_ascii_alphanumeric() {
            start = place + c.len_utf8();
        } else if c.is_ascii_uppercase() && before.is_ascii_lowercase() {
            start = place;
        }
        before = c;
    }
    name[start..].to_ascii_lowercase()
}

/// Returns whether a file's path shows that its content is a secret.
pub(super) fn is_secret_file(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    let stem = name.split('.').find(|part| !part.is_empty()).unwrap_or(name);
    let ends =
        |text: &str| ["creds", "credentials"].iter().any(|end| text.to_ascii_lowercase().ends_with(end));
    let named = |text: &str| kind(text).is_some() || ends(text);
    named(stem) || name.rsplit('.').next().is_some_and(named)
}

/// Returns whether a word looks like a generated password: letters of both cases and digits, possibly with
/// special characters. Digests, identifiers, versions and host names do not.
pub(super) fn is_random(word: &str) -> bool {
    let has = |is: fn(&u8) -> bool| word.as_bytes().iter().any(is);
    let classes = [
        has(u8::is_ascii_lowercase),
        has(u8::is_ascii_uppercase),
        has(u8::is_ascii_digit),
        word.contains(|c: char| "!#$%&*+@^~".contains(c)),
    ];
    let is_plain = |c: char| c.is_ascii_graphic() && !".:\\<>(){}".contains(c);
    let is_assignment = || word.trim_end_matches('=').contains('=');
    (MIN_RANDOM..=MAX_RANDOM).contains(&word.len())
        && classes.iter().filter(|has| **has).count() >= 3
        && word.chars().all(is_plain)
        && !word.starts_with('-')
        && !is_assignment()
}

/// Returns the trimmed value, or `None` if it cannot be a secret: too short, a file name, a variable
/// reference, an address or a common word.
pub(super) fn plausible(value: &str) -> Option<&str> {
    let value = value.trim();
    let is_variable = || {
        let name = value.strip_prefix('$').map(|name| name.trim_start_matches('{').trim_end_matches('}'));
        name.is_some_and(|name| {
            !name.starts_with(|c: char| c.is_ascii_digit())
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        })
    };
    let is_expression = || {
        let name = value.strip_prefix('$').unwrap_or_default();
        let end = name.find(|c: char| !c.is_ascii_uppercase() && c != '_').unwrap_or(name.len());
        let is_joined = name[end..].starts_with(|c: char| !c.is_ascii_alphanumeric() && c != '$');
        name.starts_with(['{', '(']) || value.starts_with('`') || (end > 2 && is_joined)
    };
    let is_template = value.starts_with("{{") || (value.starts_with('<') && value.ends_with('>'));
    let is_path = ["./", "../"].iter().chain(&DIRECTORIES).any(|directory| value.starts_with(directory));
    let is_address = value.contains("://") || value.starts_with("file:") || value.starts_with("env:");
    let lower = || value.to_ascii_lowercase();
    let is_filler = || value.bytes().all(|byte| Some(&byte) == value.as_bytes().first());
    let is_harmless = value.len() < KNOWN_MIN
        || is_path
        || is_address
        || is_expression()
        || is_template
        || is_variable()
        || is_filler()
        || WORDS.contains(&lower().as_str());
    (!is_harmless).then_some(value)
}

/// Returns whether a value looks like an object name: lower-case words joined by hyphens.
///
/// Fields whose names end in `secret` often contain such names.
pub(super) fn is_object_name(value: &str) -> bool {
    value.contains('-') && value.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-' || byte == b'/')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_secrets_are_recognized() {
        for name in [
            "password",
            "token",
            "certificateKey",
            "K3S_TOKEN",
            "AWS_SECRET_ACCESS_KEY",
            "plain_text_passwd",
            "hashed_passwd",
            "passwordHash",
            "DB_PASS",
            "dbPass",
            "ADMIN_PWD",
            "wep-key0",
            "PreSharedKey",
            "psk",
            "application-credential-secret",
            "aadClientSecret",
            "node.session.auth.password",
            "client_secret",
            "private-key-password",
            "API_KEY",
            "ARM_CLIENT_SECRET",
            "secret",
            "PrivateKey",
            "bootstrap_secret",
        ] {
            assert!(kind(name).is_some(), "{name}");
        }
    }

    #[test]
    fn names_of_other_fields_are_not() {
        for name in [
            "mode",
            "user",
            "username",
            "tokenFile",
            "token-ttl",
            "discovery-token-ca-cert-hash",
            "secretName",
            "secret-namespace",
            "initial-cluster-token",
            "access_key_id",
            "bypass",
            "compass",
            "keyring",
            "public-key",
            "ca_cert",
            "key",
            "auth-url",
            "password_file",
            "passwordless",
        ] {
            assert_eq!(kind(name), None, "{name}");
        }
    }

    #[test]
    fn generated_words_are_recognized() {
        for (word, expected) in [
            ("Zq8tR2mVx9Lw", true),
            ("ab3$def8ghi!", true),
            ("4f9a1c7e2b8d4f9a1c7e2b8d", false),
            ("v1.30.2-Rc5xyz", false),
            ("node-1a2b3c4d", false),
            ("Short1Aa", false),
            ("KUBELET_EXTRA_ARGS=--max-pods=110", false),
        ] {
            assert_eq!(is_random(word), expected, "{word}");
        }
    }

    #[test]
    fn values_that_cannot_be_secrets_are_left() {
        for value in [
            "",
            "short",
            "/etc/landfall/hub.token",
            "$DB_PASSWORD",
            "${DB_PASSWORD}",
            "$(cat /x/y)",
            "********",
            "{{ .Values.token }}",
            "<your token>",
            "https://vault.example/v1",
            "file:/x/yyyyyy",
            "Required",
        ] {
            assert_eq!(plausible(value), None, "{value}");
        }
        for value in ["$6$salt$hash", "/9j4AAQSkZJRg==", "a,b{c}d@e/f:g", "hunter22", "correct horse"] {
            assert_eq!(plausible(value), Some(value));
        }
    }
}
