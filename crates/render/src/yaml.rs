//! Rendering of values as readable YAML.
//!
//! The most important keys come first, and a comment with the reason precedes a value that needs one. There
//! are no text templates, so a value cannot change the structure around it.
//!
//! The reason of `key` is the text of `# key` in the same object, and becomes a comment.

use serde_json::{Map, Value, json};

use crate::RenderError;

/// Keys that come first, in this order; the rest is sorted by name.
const FIRST: [&str; 11] = [
    "apiVersion",
    "kind",
    "metadata",
    "name",
    "namespace",
    "path",
    "image",
    "imagePullPolicy",
    "command",
    "args",
    "env",
];
const REASON: &str = "# ";
const INDENT: &str = "  ";

pub(crate) fn documents(values: &[Value]) -> Result<String, RenderError> {
    let texts = values.iter().map(|value| block(value).map(|lines| lines.join("\n") + "\n"));
    Ok(texts.collect::<Result<Vec<_>, _>>()?.join("---\n"))
}

/// Returns the lines of a top-level value.
fn block(value: &Value) -> Result<Vec<String>, RenderError> {
    match value {
        Value::Object(map) if !map.is_empty() => object(map),
        Value::Array(items) if !items.is_empty() => list(items),
        _ => plain(value),
    }
}

fn object(map: &Map<String, Value>) -> Result<Vec<String>, RenderError> {
    let rank = |key: &str| FIRST.iter().position(|first| *first == key).unwrap_or(FIRST.len());
    let mut keys: Vec<&String> = map.keys().filter(|key| !key.starts_with(REASON)).collect();
    keys.sort_by_key(|key| (rank(key), *key));
    let mut lines = Vec::new();
    for key in keys {
        if let Some(reason) = map.get(&format!("{REASON}{key}")).and_then(Value::as_str) {
            lines.push(format!("{REASON}{reason}"));
        }
        match &map[key] {
            Value::Object(inner) if !inner.is_empty() => {
                lines.push(name(key)?);
                lines.extend(object(inner)?.into_iter().map(|line| indented(&line)));
            }
            Value::Array(items) if !items.is_empty() => {
                lines.push(name(key)?);
                lines.extend(list(items)?);
            }
            value => lines.extend(plain(&json!({ key: value }))?),
        }
    }
    Ok(lines)
}

fn list(items: &[Value]) -> Result<Vec<String>, RenderError> {
    let mut lines = Vec::new();
    for item in items {
        if matches!(item, Value::Object(_) | Value::Array(_)) {
            let inner = block(item)?.into_iter().enumerate();
            lines.extend(inner.map(|(number, line)| match number {
                0 => format!("- {line}"),
                _ => indented(&line),
            }));
        } else {
            lines.extend(plain(&json!([item]))?);
        }
    }
    Ok(lines)
}

/// Returns a key whose value is on the following lines.
fn name(key: &str) -> Result<String, RenderError> {
    let mut lines = plain(&json!({ key: 0 }))?;
    let line = lines.pop().unwrap_or_default();
    Ok(line.trim_end_matches('0').trim_end().to_owned())
}

/// Returns a value without sorted keys, quoted as needed.
fn plain(value: &Value) -> Result<Vec<String>, RenderError> {
    let options = serde_saphyr::ser_options! { indent_step: 2, compact_list_indent: true };
    let text = serde_saphyr::to_string_with_options(value, options).map_err(RenderError::Yaml)?;
    // An empty line of a text needs no indentation.
    Ok(text.lines().map(|line| if line == INDENT { String::new() } else { line.to_owned() }).collect())
}

/// Indents a line; empty lines of a text stay empty.
fn indented(line: &str) -> String {
    if line.is_empty() { String::new() } else { format!("{INDENT}{line}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_that_looks_like_something_else_stays_text() {
        let tricky =
            ["yes", "0440", "1e3", "null", "~", "a: b", "# no", "- x", "{{ a }}", "", " lead", "*a", "12:30"];
        let text = documents(&[json!({ "list": tricky })]).unwrap();
        for word in tricky.iter().filter(|word| !word.is_empty()) {
            assert!(
                text.contains(&format!("\"{word}\"")) || text.contains(&format!("'{word}'")),
                "`{word}` needs quotes in {text}"
            );
        }
    }

    #[test]
    fn what_a_reader_looks_for_comes_first_with_its_reason() {
        let value = json!({
            "spec": {
                "# hostNetwork": "It must run before the cluster's network does.",
                "hostNetwork": true,
                "containers": [{"args": ["a", "b: c"], "name": "x", "ports": [], "text": "one\n\n  two\n"}, "z"],
            },
            "kind": "Pod",
            "metadata": {"labels": {"a/b": "c"}, "name": "m"},
            "apiVersion": "v1",
            "empty": {},
        });
        assert_eq!(
            documents(&[value, json!({"a": 1})]).unwrap(),
            "apiVersion: v1\n\
             kind: Pod\n\
             metadata:\n  \
               name: m\n  \
               labels:\n    \
                 a/b: c\n\
             empty: {}\n\
             spec:\n  \
               containers:\n  \
               - name: x\n    \
                 args:\n    \
                 - a\n    \
                 - \"b: c\"\n    \
                 ports: []\n    \
                 text: |\n      \
                   one\n\n        \
                   two\n  \
               - z\n  \
               # It must run before the cluster's network does.\n  \
               hostNetwork: true\n\
             ---\n\
             a: 1\n"
        );
    }
}
