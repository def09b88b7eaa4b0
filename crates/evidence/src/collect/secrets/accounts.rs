//! Tables of passwords and password hashes.

use landfall_redact::Kind;

use super::values::Values;

/// `name:hash:…`. Locked accounts have a `!` before the hash.
pub(super) fn shadow(text: &str, values: &mut Values) {
    for hash in text.lines().filter_map(|line| line.split(':').nth(1)) {
        values.secret(Kind::PASSWORD, hash.trim_start_matches('!'));
    }
}

/// `user:uid:count:hash,hash,…`.
pub(super) fn previous_passwords(text: &str, values: &mut Values) {
    for hashes in text.lines().filter_map(|line| line.splitn(4, ':').nth(3)) {
        hashes.split(',').for_each(|hash| values.secret(Kind::PASSWORD, hash));
    }
}

/// `password,user,uid,groups`.
pub(super) fn password_table(text: &str, values: &mut Values) {
    for line in text.lines() {
        values.secret(Kind::PASSWORD, line.split(',').next().unwrap_or_default().trim_matches('"'));
    }
}

/// `machine HOST login USER password PASSWORD`, over any number of lines.
pub(super) fn netrc(text: &str, values: &mut Values) {
    let mut words = text.split_ascii_whitespace();
    while let Some(word) = words.next() {
        if word == "password" {
            values.secret(Kind::PASSWORD, words.next().unwrap_or_default().trim_matches('"'));
        }
    }
}

/// `host:port:database:user:password`; `\:` is part of a field.
pub(super) fn pgpass(text: &str, values: &mut Values) {
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let mut colons = 0;
        let mut is_escaped = false;
        let start = line.char_indices().find_map(|(place, c)| {
            colons += usize::from(c == ':' && !is_escaped);
            is_escaped = c == '\\' && !is_escaped;
            (colons == 4).then_some(place + 1)
        });
        let password = start.and_then(|start| line.get(start..)).unwrap_or_default();
        values.secret(Kind::PASSWORD, &password.replace("\\:", ":").replace("\\\\", "\\"));
    }
}

/// `client server secret addresses`.
pub(super) fn chap_secrets(text: &str, values: &mut Values) {
    for line in text.lines().filter(|line| !line.trim_start().starts_with('#')) {
        let words = super::shell::words(line);
        values.secret(Kind::PASSWORD, words.get(2).map_or("", String::as_str));
    }
}

/// `selectors : PSK secret`; the secrets of RSA keys are files.
pub(super) fn ipsec_secrets(text: &str, values: &mut Values) {
    for line in text.lines() {
        let words = super::shell::words(line);
        let is_kind = |word: &str| ["PSK", "EAP", "XAUTH", "NTLM"].contains(&word.trim_start_matches(':'));
        for pair in words.windows(2).filter(|pair| is_kind(&pair[0])) {
            values.secret(Kind::PASSWORD, &pair[1]);
        }
    }
}

/// `name value` on lines.
pub(super) fn directives(text: &str, values: &mut Values) {
    for words in text.lines().map(super::shell::words) {
        if let [name, value, ..] = &words[..] {
            values.field(name, value);
        }
    }
}

/// `key = …` in sections.
pub(super) fn keyring(text: &str, values: &mut Values) {
    for (name, value) in text.lines().filter_map(|line| line.split_once('=')) {
        if name.trim() == "key" {
            values.secret(Kind::PASSWORD, value);
        }
    }
}
