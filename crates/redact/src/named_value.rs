//! A value with its name in an adjacent field: `{"name": "DB_PASSWORD", "value": "…"}`, on one line or on
//! two, as in the environment of pods.

use memchr::memrchr;

/// Maximum distance of a name and its value, including quotes, commas and indentation.
const APART_MAX: usize = 256;

/// Fields that contain the name.
const KEYS: [&[u8]; 2] = [b"name", b"key"];

/// Parts of names that identify a secret, in lower case.
const TELLING: [&[u8]; 9] =
    [b"password", b"passwd", b"passphrase", b"token", b"secret", b"_pwd", b"credential", b"apikey", b"_key"];

/// Endings of names that denote the location or the name of a secret.
const ABOUT_SECRETS: [&[u8]; 10] =
    [b"_file", b"_path", b"_dir", b"_url", b"_ttl", b"_id", b"_name", b"_type", b"_hash", b"_enabled"];

/// Shorter values are switches or numbers.
const VALUE_MIN: usize = 4;

/// Returns the location of the value in the field `value` at `word`, if the name before it identifies it as a
/// secret.
pub(crate) fn find(text: &[u8], line: (usize, usize), word: (usize, usize)) -> Option<(usize, usize)> {
    let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    if line.0 < word.0 && is_word(&text[word.0 - 1]) {
        return None;
    }
    let (start, end) = quoted(text, word.0 + b"value".len(), line.1)?;
    if end - start < VALUE_MIN {
        return None;
    }
    // The line up to here, and the previous one.
    let from = if line.0 == 0 { 0 } else { memrchr(b'\n', &text[..line.0 - 1]).map_or(0, |feed| feed + 1) };
    let before = &text[from.max(word.0.saturating_sub(APART_MAX))..word.0];
    is_telling(name(before)?).then_some((start, end))
}

/// Returns the last name in a text: the value after the last `name` or `key`.
fn name(text: &[u8]) -> Option<&[u8]> {
    let is_letter = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    let field = |key: &[u8], at: usize| {
        let is_part = at > 0 && is_letter(&text[at - 1]);
        quoted(text, at + key.len(), text.len()).filter(|_| !is_part)
    };
    let last = |key: &&[u8]| memchr::memmem::rfind_iter(text, key).find_map(|at| field(key, at));
    let (start, end) = KEYS.iter().filter_map(last).max()?;
    Some(&text[start..end])
}

/// Returns the content of a field whose name ends at `at`: after a quote, a colon or an equals sign, up to
/// the closing quote or the next space.
fn quoted(text: &[u8], mut at: usize, end: usize) -> Option<(usize, usize)> {
    let skip =
        |at: usize, set: &[u8]| at + text[at..end].iter().take_while(|byte| set.contains(byte)).count();
    at = skip(at, b"\\\"'");
    at = skip(at, b" \t");
    if !matches!(text.get(at), Some(b':' | b'=')) || at >= end {
        return None;
    }
    at = skip(at + 1, b" \t");
    let open = skip(at, b"\\");
    let quote = text.get(open).copied().filter(|byte| open < end && matches!(byte, b'"' | b'\''));
    let Some(quote) = quote else {
        let stop =
            |byte: &u8| byte.is_ascii_whitespace() || matches!(byte, b',' | b'}' | b']' | b'"' | b'\'');
        let len = text[at..end].iter().position(stop).unwrap_or(end - at);
        return Some((at, at + len));
    };
    let depth = open - at;
    let start = open + 1;
    let mut backslashes = 0;
    for (i, &byte) in text[start..end].iter().enumerate() {
        if byte == quote && backslashes <= depth && (depth > 0 || backslashes % 2 == 0) {
            return Some((start, start + i - backslashes.min(depth)));
        }
        backslashes = if byte == b'\\' { backslashes + 1 } else { 0 };
    }
    Some((start, end))
}

fn is_telling(name: &[u8]) -> bool {
    // The line end may be escaped.
    let name = name.split(|byte| *byte == b'\\').next().unwrap_or_default().to_ascii_lowercase();
    let is_pass = name.ends_with(b"pass") && !name.ends_with(b"bypass");
    (is_pass || TELLING.iter().any(|part| memchr::memmem::find(&name, part).is_some()))
        && !ABOUT_SECRETS.iter().any(|end| name.ends_with(end))
}

#[cfg(test)]
mod tests {
    use crate::{Options, Redactor};

    fn redact(text: &str) -> String {
        let redactor = Redactor::builder().build().unwrap();
        String::from_utf8(redactor.redact(text.as_bytes(), Options::default()).0).unwrap()
    }

    #[test]
    fn the_name_beside_a_value_gives_it_away() {
        for text in [
            r#"{"name":"DB_PASSWORD","value":"plum-jam"}"#,
            r#"{\"name\":\"DB_PASSWORD\",\"value\":\"plum-jam\"}"#,
            "      {\n        \"name\": \"REGISTRY_TOKEN\",\n        \"value\": \"plum-jam\"\n      }",
            "- name: api_key\n  value: plum-jam\n",
            "- name: DB_PASSWORD  value: plum-jam",
            "<input name=\"password\" value=\"plum-jam\"/>",
            r#"{"key":"MY_SECRET","value":"plum\"plum-jam"}"#,
        ] {
            let redacted = redact(text);
            assert!(!redacted.contains("plum") && redacted.contains("***<ENVVAR:"), "{text} -> {redacted}");
        }
    }

    #[test]
    fn other_values_stay() {
        for text in [
            r#"{"name":"KUBECONFIG","value":"/etc/kubernetes/admin.conf"}"#,
            r#"{"name":"TOKEN_FILE","value":"/run/token-of-a-kind"}"#,
            "- name: LOG_LEVEL\n  value: debug\n",
            "invalid value: secret-thing",
            "filename: password.txt value: 12345",
            "the value=12345 of name=other",
            r#"{"name":"DB_PASSWORD","valueFrom":{"secretKeyRef":{"name":"db","key":"password"}}}"#,
        ] {
            assert_eq!(redact(text), text);
        }
    }
}
