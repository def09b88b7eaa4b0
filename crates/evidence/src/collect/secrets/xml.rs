//! XML elements: the settings that Azure provides to a machine.

use super::encoded;
use super::values::Values;

/// Element with Base64 user data.
const USER_DATA: &str = "CustomData";

/// Searches the text of elements without child elements.
pub(super) fn search(text: &str, values: &mut Values) {
    let mut elements = text.split('<').skip(1).peekable();
    while let Some(element) = elements.next() {
        let Some((tag, value)) = element.split_once('>') else { continue };
        let is_leaf = elements.peek().is_some_and(|next| next.starts_with('/'));
        if !is_leaf || tag.starts_with('/') {
            continue;
        }
        let name = tag.split_ascii_whitespace().next().unwrap_or_default();
        let name = name.rsplit(':').next().unwrap_or(name);
        let value = unescaped(value);
        values.field(name, &value);
        if name == USER_DATA
            && let Some(bytes) = encoded::base64(value.as_bytes())
        {
            super::content(None, bytes, values);
        }
    }
}

fn unescaped(text: &str) -> String {
    let text = text.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"").replace("&apos;", "'");
    text.replace("&amp;", "&")
}
