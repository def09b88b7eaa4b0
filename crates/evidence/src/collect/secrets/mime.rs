//! Multipart user data.

use super::encoded;
use super::values::Values;

/// Maximum number of parts per message.
const MAX_PARTS: usize = 256;

/// Header fields that start a message.
const FIELDS: [&str; 4] = ["content-type:", "mime-version:", "from:", "content-transfer-encoding:"];

pub(super) fn is_message(text: &str) -> bool {
    let first = text.trim_start().lines().next().unwrap_or_default().to_ascii_lowercase();
    // mbox: `From nobody Thu Jan  1 00:00:00 1970`.
    FIELDS.iter().any(|field| first.starts_with(field)) || first.starts_with("from nobody ")
}

/// Searches each decoded part of a message.
pub(super) fn search(text: &str, values: &mut Values) {
    let (headers, body) = split(text.trim_start());
    let Some(boundary) = parameter(&headers, "content-type", "boundary") else {
        return part(&headers, body, values);
    };
    let delimiter = format!("--{boundary}");
    let mut parts: Vec<String> = Vec::new();
    for line in body.lines() {
        if line.trim_end().strip_prefix(&delimiter).is_some_and(|rest| rest.is_empty() || rest == "--") {
            if parts.len() == MAX_PARTS {
                break;
            }
            parts.push(String::new());
        } else if let Some(part) = parts.last_mut() {
            part.push_str(line);
            part.push('\n');
        }
    }
    for text in parts {
        values.nested(text.len(), |values| {
            let (headers, body) = split(&text);
            match parameter(&headers, "content-type", "boundary") {
                Some(_) => search(&text, values),
                None => part(&headers, body, values),
            }
        });
    }
}

fn part(headers: &[(String, String)], body: &str, values: &mut Values) {
    let encoding = field(headers, "content-transfer-encoding").unwrap_or_default().to_ascii_lowercase();
    let bytes = match encoding.trim() {
        "base64" => encoded::base64(body.as_bytes()),
        "quoted-printable" => Some(quoted_printable(body)),
        _ => Some(body.as_bytes().to_vec()),
    };
    let path = parameter(headers, "content-disposition", "filename");
    super::content(path.as_deref(), bytes.unwrap_or_default(), values);
}

/// Splits a message into unfolded headers with lower-case names, and the body.
fn split(text: &str) -> (Vec<(String, String)>, &str) {
    let mut headers: Vec<(String, String)> = Vec::new();
    let mut rest = text;
    while let Some((line, after)) = rest.split_once('\n') {
        rest = after;
        let line = line.trim_end();
        if line.is_empty() {
            break;
        }
        if line.starts_with([' ', '\t']) {
            if let Some((_, value)) = headers.last_mut() {
                value.push(' ');
                value.push_str(line.trim());
            }
        } else if let Some((name, value)) = line.split_once(':') {
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
    }
    (headers, rest)
}

fn field<'h>(headers: &'h [(String, String)], name: &str) -> Option<&'h str> {
    headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
}

/// Returns the value of `name=value` or `name="value"` in a header.
fn parameter(headers: &[(String, String)], header: &str, name: &str) -> Option<String> {
    let parameters = field(headers, header)?.split(';').skip(1).filter_map(|part| part.split_once('='));
    let mut values = parameters.filter(|(known, _)| known.trim().eq_ignore_ascii_case(name));
    values.next().map(|(_, value)| value.trim().trim_matches('"').to_owned())
}

fn quoted_printable(text: &str) -> Vec<u8> {
    let mut joined = String::with_capacity(text.len());
    for line in text.lines() {
        let continued = line.trim_end().strip_suffix('=');
        joined.push_str(continued.unwrap_or(line));
        if continued.is_none() {
            joined.push('\n');
        }
    }
    // Quoted-printable is percent encoding with another escape character.
    encoded::percent(&joined.replace('%', "%25").replace('=', "%"))
}
