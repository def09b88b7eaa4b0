//! JSON, YAML and TOML: parsed, then searched by field name.

use std::fmt;

use landfall_redact::Kind;
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::DuplicateKeyPolicy;

use super::values::Values;
use super::{encoded, lines, shell, urls};

/// Limits for one YAML file: aliases could repeat content a million times.
const MAX_EVENTS: usize = 300_000;
const MAX_REPEATED: usize = 100_000;
const MAX_NESTING: usize = 100;

/// Minimum length of a registry `auth` that is not a user name and a password; shorter values are words.
const MIN_AUTH: usize = 16;

/// First line of cloud-init templates.
const TEMPLATE: &str = "## template: jinja";

/// Base64 of `-----BEGIN`.
const PEM_IN_BASE64: &str = "LS0tLS1CRUdJT";

/// Fields with user data, as text or Base64.
const USER_DATA: [&str; 6] =
    ["userdata", "vendordata", "vendordata2", "customdata", "userdataraw", "vendordataraw"];

/// A parsed value. Fields keep their order and may repeat.
#[derive(Debug, PartialEq)]
enum Node {
    Nothing,
    Number(String),
    Text(String),
    List(Vec<Self>),
    Map(Vec<(String, Self)>),
}

/// Searches a document. Returns `false` if the text is not one.
pub(super) fn search(text: &str, values: &mut Values) -> bool {
    let rendered = text.starts_with(TEMPLATE).then(|| without_expressions(text));
    let text = rendered.as_deref().unwrap_or(text);
    let exact = json(text).or_else(|| yaml(text, DuplicateKeyPolicy::Error)).or_else(|| toml(text));
    let is_exact = exact.is_some();
    // A truncated file is read up to its end; of repeated fields, the last one counts.
    let documents =
        exact.or_else(|| json(&closed(text)?)).or_else(|| yaml(text, DuplicateKeyPolicy::LastWins));
    for document in documents.iter().flatten() {
        in_node("", document, None, values);
    }
    // Parsers read `password: 0123456789` as a number.
    lines::digits_of_secrets(text, values);
    is_exact
}

/// Replaces each template expression with a word and removes statements.
fn without_expressions(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find("{{").into_iter().chain(rest.find("{%")).min() {
        let end = if rest[start..].starts_with("{{") { "}}" } else { "%}" };
        let Some(length) = rest[start..].find(end) else { break };
        plain.push_str(&rest[..start]);
        if end == "}}" {
            plain.push_str("expression");
        }
        rest = &rest[start + length + end.len()..];
    }
    plain + rest
}

/// Completes truncated JSON: removes the last element and closes all lists and objects.
fn closed(text: &str) -> Option<String> {
    if !text.trim_start().starts_with(['{', '[']) {
        return None;
    }
    let mut open = Vec::new();
    let mut complete = None;
    let (mut is_string, mut is_escaped) = (false, false);
    for (place, byte) in text.bytes().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_string => is_escaped = true,
            b'"' => is_string = !is_string,
            _ if is_string => {}
            b'{' => open.push('}'),
            b'[' => open.push(']'),
            b'}' | b']' => {
                open.pop();
                complete = Some((place + 1, open.len()));
            }
            b',' => complete = Some((place, open.len())),
            _ => {}
        }
    }
    let (place, depth) = complete?;
    let ends = open.get(..depth)?.iter().rev();
    Some(text[..place].chars().chain(ends.copied()).collect())
}

fn json(text: &str) -> Option<Vec<Node>> {
    if !text.trim_start().starts_with(['{', '[']) {
        return None;
    }
    let documents = serde_json::Deserializer::from_str(text).into_iter::<Node>();
    documents.collect::<Result<Vec<_>, _>>().ok().filter(|documents| has_fields(documents))
}

fn yaml(text: &str, duplicate_keys: DuplicateKeyPolicy) -> Option<Vec<Node>> {
    let options = serde_saphyr::options! {
        duplicate_keys: duplicate_keys,
        budget: serde_saphyr::budget! {
            max_events: MAX_EVENTS,
            max_nodes: MAX_EVENTS,
            max_recorded_anchor_events: MAX_REPEATED,
            max_depth: MAX_NESTING,
        },
        ignore_binary_tag_for_string: true,
        with_snippet: false,
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: MAX_REPEATED },
    };
    let documents: Vec<Node> = serde_saphyr::from_multiple_with_options(text, options).ok()?;
    has_fields(&documents).then_some(documents)
}

fn toml(text: &str) -> Option<Vec<Node>> {
    toml::from_str::<Node>(text).ok().map(|document| vec![document])
}

fn has_fields(documents: &[Node]) -> bool {
    documents.iter().any(|document| matches!(document, Node::Map(_) | Node::List(_)))
}

fn in_node(name: &str, node: &Node, path: Option<&str>, values: &mut Values) {
    match node {
        Node::Nothing => {}
        Node::Number(value) => values.field(name, value),
        Node::Text(value) => in_text(name, value, path, values),
        Node::List(list) => {
            let words: Vec<&str> = list.iter().filter_map(Node::text).collect();
            shell::arguments(&words, values);
            for node in list {
                in_node(name, node, path, values);
            }
        }
        Node::Map(fields) => in_map(fields, path, values),
    }
}

fn in_map(fields: &[(String, Node)], path: Option<&str>, values: &mut Values) {
    let get = |wanted: &str| fields.iter().find(|(name, _)| name == wanted).map(|(_, node)| node);
    let text = |wanted: &str| get(wanted).and_then(Node::text);
    let path = text("path").filter(|path| path.starts_with('/')).or(path);
    // `{name: …, value: …}`: container variables and Ignition headers.
    if let (Some(name), Some(value)) = (text("name"), text("value")) {
        shell::header_field(name, value, values);
    }
    let is_secret_object = text("kind") == Some("Secret");
    for (name, node) in fields {
        match (name.as_str(), node) {
            ("data", Node::Map(data)) if is_secret_object => secret_data(data, values),
            ("chpasswd", Node::Map(chpasswd)) => {
                passwords(chpasswd, values);
                in_map(chpasswd, path, values);
            }
            ("content" | "contents", Node::Text(content)) => {
                let is_private = text("permissions").is_some_and(|mode| mode.ends_with("00"));
                written(content, text("encoding"), path, is_private, values);
            }
            // `local` is Butane's field; the key file of a LUKS volume is a secret itself.
            ("keyFile" | "key_file", Node::Map(_)) => in_node(name, node, Some("/password"), values),
            _ => in_node(name, node, path, values),
        }
    }
}

/// Searches the content of a file in user data.
fn written(content: &str, encoding: Option<&str>, path: Option<&str>, is_private: bool, values: &mut Values) {
    let encoding = encoding.unwrap_or_default().to_ascii_lowercase();
    let bytes = match encoding.as_str() {
        // YAML binary values are Base64 by their tag.
        "b64" | "base64" | "gz" | "gzip" | "gz+b64" | "gz+base64" | "gzip+b64" | "gzip+base64" => {
            encoded::base64(content.as_bytes())
        }
        _ => encoded::data_url(content),
    };
    let bytes = bytes.unwrap_or_else(|| content.as_bytes().to_vec());
    // A file readable only by root with a single word is a secret.
    if is_private && !bytes.trim_ascii().contains(&b' ') && !bytes.trim_ascii().contains(&b'\n') {
        values.secret(Kind::PASSWORD, &String::from_utf8_lossy(&bytes));
    }
    super::content(path, bytes, values);
}

/// `list` of `chpasswd`: lines or items of `user:password`.
fn passwords(chpasswd: &[(String, Node)], values: &mut Values) {
    for (_, node) in chpasswd.iter().filter(|(name, _)| name == "list") {
        match node {
            Node::Text(text) => shell::logins(text, values),
            Node::List(list) => {
                list.iter().filter_map(Node::text).for_each(|text| shell::logins(text, values));
            }
            _ => {}
        }
    }
}

/// Secret objects contain Base64 values.
fn secret_data(data: &[(String, Node)], values: &mut Values) {
    for (name, node) in data {
        let Some(bytes) = node.text().and_then(|text| encoded::base64(text.as_bytes())) else { continue };
        let text = String::from_utf8_lossy(&bytes).into_owned();
        values.nested(text.len(), |values| in_text(name, &text, Some(name), values));
    }
}

fn in_text(name: &str, value: &str, path: Option<&str>, values: &mut Values) {
    match name {
        "auth" => {
            let is_opaque = || value.len() >= MIN_AUTH && encoded::base64(value.as_bytes()).is_some();
            if shell::basic(value, values) || is_opaque() {
                values.secret(Kind::REGISTRY_AUTH, value);
            }
            return;
        }
        "client-key-data" => values.add(Kind::PRIVATE_KEY, value.trim().as_bytes()),
        _ if name.to_ascii_lowercase().ends_with("authorization") => shell::header_field(name, value, values),
        _ => values.field(name, value),
    }
    if let Some(bytes) = encoded::data_url(value) {
        return super::content(path, bytes, values);
    }
    let plain: String = name.chars().filter(char::is_ascii_alphanumeric).collect();
    let is_user_data = USER_DATA.contains(&plain.to_ascii_lowercase().as_str());
    let encoded = value.strip_prefix("ci-b64:");
    if (encoded.is_some() || is_user_data || value.starts_with(PEM_IN_BASE64))
        && let Some(bytes) = encoded::base64(encoded.unwrap_or(value).as_bytes())
    {
        return super::content(None, bytes, values);
    }
    if is_user_data || value.contains('\n') || value.trim_start().starts_with(['{', '[']) {
        values.nested(value.len(), |values| super::any(value, values));
    } else if value.contains(char::is_whitespace) || value.contains('=') {
        shell::script(value, values);
    } else {
        urls::search(value, values);
    }
}

// === impl Node ===

impl Node {
    fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Node, E> {
        Ok(Node::Nothing)
    }

    fn visit_i64<E>(self, value: i64) -> Result<Node, E> {
        Ok(Node::Number(value.to_string()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Node, E> {
        Ok(Node::Number(value.to_string()))
    }

    fn visit_i128<E>(self, value: i128) -> Result<Node, E> {
        Ok(Node::Number(value.to_string()))
    }

    fn visit_u128<E>(self, value: u128) -> Result<Node, E> {
        Ok(Node::Number(value.to_string()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Node, E> {
        Ok(Node::Number(value.to_string()))
    }

    fn visit_str<E>(self, value: &str) -> Result<Node, E> {
        Ok(Node::Text(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Node, E> {
        Ok(Node::Text(value))
    }

    fn visit_bytes<E>(self, value: &[u8]) -> Result<Node, E> {
        Ok(Node::Text(String::from_utf8_lossy(value).into_owned()))
    }

    fn visit_none<E>(self) -> Result<Node, E> {
        Ok(Node::Nothing)
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Nothing)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Node, A::Error> {
        let mut list = Vec::new();
        while let Some(node) = sequence.next_element()? {
            list.push(node);
        }
        Ok(Node::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut fields = Vec::new();
        while let Some(field) = map.next_entry()? {
            fields.push(field);
        }
        Ok(Node::Map(fields))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truncated_json_is_closed() {
        for (text, expected) in [
            (r#"{"a": [1, {"b": "c, ]", "d": "e"#, Some(r#"{"a": [1, {"b": "c, ]"}]}"#)),
            (r#"{"a": [1, 2], "b": [3"#, Some(r#"{"a": [1, 2]}"#)),
            (r#"{"a": 1, "b": [2, 3]"#, Some(r#"{"a": 1, "b": [2, 3]}"#)),
            (r#"{"a""#, None),
            ("text", None),
        ] {
            assert_eq!(closed(text).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn templates_become_documents() {
        let text = "## template: jinja\na: {{ x }}\n{% if y %}\nb: c\n{% endif %}\nd: {{ e";
        assert_eq!(without_expressions(text), "## template: jinja\na: expression\n\nb: c\n\nd: {{ e");
    }

    #[test]
    fn fields_that_repeat_are_all_found() {
        let mut values = Values::new();
        search("password: first-secret\npassword: other-secret\n", &mut values);
        crate::collect::secrets::shell::script("password: first-secret\n", &mut values);
        assert_eq!(values.into_parts().0.len(), 2);
    }
}
