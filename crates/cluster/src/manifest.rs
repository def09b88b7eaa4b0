//! Kubernetes objects from YAML files in the binary.

use serde_json::Value;

const EMBEDDED: &str = "the file is in the binary, and tests read it";

/// Returns the objects of an embedded YAML file, with `$NAME` replaced by the value of that name.
///
/// The values are inserted into parsed objects, never into text, so no value can change the structure around
/// it. A string that is only a placeholder becomes the value itself; within a longer string, its text. Null
/// leaves out its key or item, and a list in place of an item is inserted item by item.
pub fn objects(yaml: &'static str, values: &[(&str, Value)]) -> Vec<Value> {
    let objects: Vec<Value> = serde_saphyr::from_multiple(yaml).expect(EMBEDDED);
    objects.into_iter().map(|object| filled(object, values)).collect()
}

/// As [`objects`], for a file with one object.
pub fn object(yaml: &'static str, values: &[(&str, Value)]) -> Value {
    filled(serde_saphyr::from_str(yaml).expect(EMBEDDED), values)
}

fn filled(value: Value, values: &[(&str, Value)]) -> Value {
    match value {
        Value::Object(map) => {
            let map = map.into_iter().map(|(key, value)| (key, filled(value, values)));
            map.filter(|(_, value)| !value.is_null()).collect()
        }
        Value::Array(items) => {
            let items = items.into_iter().flat_map(|item| match filled(item, values) {
                Value::Null => Vec::new(),
                Value::Array(items) => items,
                item => vec![item],
            });
            items.collect()
        }
        Value::String(text) => match text.strip_prefix('$').and_then(|name| named(values, name)) {
            Some(whole) => whole.clone(),
            None => Value::String(with_texts(&text, values)),
        },
        other => other,
    }
}

fn named<'v>(values: &'v [(&str, Value)], name: &str) -> Option<&'v Value> {
    values.iter().find(|(own, _)| *own == name).map(|(_, value)| value)
}

fn with_texts(text: &str, values: &[(&str, Value)]) -> String {
    let mut parts = text.split('$');
    let mut filled = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|c: char| !c.is_ascii_uppercase() && c != '_').unwrap_or(part.len());
        let (name, rest) = part.split_at(end);
        match named(values, name) {
            Some(Value::String(text)) => filled += text,
            Some(value) => filled += &value.to_string(),
            None => filled += &format!("${name}"),
        }
        filled += rest;
    }
    filled
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_value_cannot_change_the_structure_around_it() {
        let values = [
            ("NAME", json!("a: {b}\nc: $LIST")),
            ("LIST", json!([1, 2])),
            ("NONE", Value::Null),
            ("PORT", json!(8091)),
        ];
        let yaml =
            "name: $NAME\nlist: [$LIST, $NONE, $PORT]\nnone: $NONE\n---\ntext: x-$NAME-$PORT.$OTHER$\n";
        assert_eq!(
            objects(yaml, &values),
            [
                json!({"name": "a: {b}\nc: $LIST", "list": [1, 2, 8091]}),
                json!({"text": "x-a: {b}\nc: $LIST-8091.$OTHER$"}),
            ]
        );
    }
}
