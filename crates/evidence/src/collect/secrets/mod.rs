//! The machine's own secrets: the files that contain them, and the parsers that find them.
//!
//! The parsers are pure and limit size, depth and number.

mod accounts;
mod document;
mod encoded;
mod lines;
mod mime;
pub(super) mod named_files;
mod names;
pub(super) mod places;
mod shell;
mod urls;
mod values;
mod xml;

use std::path::Path;

use landfall_redact::Kind;

pub(super) use self::encoded::unpacked;
use self::places::Format;
pub(super) use self::values::Values;

/// Finds the secrets in a file of this format.
pub(super) fn search(format: Format, bytes: &[u8]) -> Values {
    let mut values = Values::new();
    in_format(format, bytes, &mut values);
    values
}

fn in_format(format: Format, bytes: &[u8], values: &mut Values) {
    let text = String::from_utf8_lossy(bytes);
    match format {
        Format::Opaque => {}
        Format::Any => any(&text, values),
        Format::Encoded => content(None, encoded::base64(bytes).unwrap_or_else(|| bytes.to_vec()), values),
        Format::Xml => xml::search(&text, values),
        Format::Directives => accounts::directives(&text, values),
        Format::Lines(kind) => text.lines().for_each(|line| values.secret(kind, line)),
        Format::LastLine => {
            let last = text.lines().rev().find(|line| !line.trim().is_empty());
            values.secret(Kind::PASSWORD, last.unwrap_or_default());
        }
        Format::Pem if text.contains("-----BEGIN") => values.private_keys(&text),
        Format::Pem => values.secret(Kind::PRIVATE_KEY, &text),
        Format::Shadow => accounts::shadow(&text, values),
        Format::PreviousPasswords => accounts::previous_passwords(&text, values),
        Format::PasswordTable => accounts::password_table(&text, values),
        Format::Netrc => accounts::netrc(&text, values),
        Format::Pgpass => accounts::pgpass(&text, values),
        Format::ChapSecrets => accounts::chap_secrets(&text, values),
        Format::IpsecSecrets => accounts::ipsec_secrets(&text, values),
        Format::Keyring => accounts::keyring(&text, values),
    }
}

/// Searches a file written by user data or Ignition, by its path or its content.
fn content(path: Option<&str>, bytes: Vec<u8>, values: &mut Values) {
    values.nested(bytes.len(), |values| {
        let bytes = unpacked(bytes);
        let format = path.and_then(|path| places::format(Path::new(path)));
        if let Some(format) = format.filter(|format| *format != Format::Any) {
            return in_format(format, &bytes, values);
        }
        let text = String::from_utf8_lossy(&bytes);
        // A single word: the file contains only a token.
        let word = text.trim();
        let is_secret = || path.is_some_and(names::is_secret_file) || names::is_random(word);
        if path.is_some() && !word.contains(char::is_whitespace) && is_secret() {
            let is_assignment = word.split_once('=').is_some_and(|(name, _)| names::kind(name).is_some());
            if !is_assignment && !word.starts_with(['{', '[']) {
                values.secret(Kind::PASSWORD, word);
            }
        }
        any(&text, values);
    });
}

/// Searches text in any format of configuration or user data.
fn any(text: &str, values: &mut Values) {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    values.private_keys(text);
    if let Some(bytes) = encoded::user_data(text) {
        content(None, bytes, values);
    } else if mime::is_message(text) {
        mime::search(text, values);
    } else if text.starts_with("#!") || text.starts_with("#cloud-boothook") || !document::search(text, values)
    {
        shell::script(text, values);
    }
}

#[cfg(test)]
mod tests;
