//! Creation of a node's Secret from the shared template.
//!
//! Every `{node}` in its texts is replaced by the node's name, and no other text is changed.

use landfall_model::Secret;
use serde_json::Value;

/// The maximum size of a Secret.
const MAX_BYTES: usize = 1024 * 1024;
/// JSON nesting limit, above that of any Secret.
const MAX_DEPTH: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    #[error("the template is larger than a Secret may be")]
    TooLarge,
    #[error("the template is not a JSON object")]
    NotJson,
    #[error("the template is nested too deeply")]
    TooDeep,
}

/// Returns the Secret of one node.
pub fn fill(template: &Secret<Vec<u8>>, node: &str) -> Result<Secret<Vec<u8>>, TemplateError> {
    if template.expose().len() > MAX_BYTES {
        return Err(TemplateError::TooLarge);
    }
    let mut value: Value = serde_json::from_slice(template.expose()).map_err(|_| TemplateError::NotJson)?;
    if !value.is_object() {
        return Err(TemplateError::NotJson);
    }
    fill_value(&mut value, node, MAX_DEPTH)?;
    Ok(Secret::new(value.to_string().into_bytes()))
}

fn fill_value(value: &mut Value, node: &str, depth: usize) -> Result<(), TemplateError> {
    if depth == 0 {
        return Err(TemplateError::TooDeep);
    }
    match value {
        Value::String(text) => {
            *text = text.replace("{node}", node);
            Ok(())
        }
        Value::Array(values) => values.iter_mut().try_for_each(|value| fill_value(value, node, depth - 1)),
        Value::Object(values) => values.values_mut().try_for_each(|value| fill_value(value, node, depth - 1)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn filled(template: &[u8]) -> Result<Value, TemplateError> {
        let secret = fill(&Secret::new(template.to_vec()), "n-{node}")?;
        Ok(serde_json::from_slice(secret.expose()).unwrap())
    }

    #[test]
    fn the_places_are_filled_and_nothing_else() {
        let template = json!({"workerid": "w/{node}/{uid}", "ca_cert": "{x} {", "list": ["{node}"], "n": 1});
        let expected =
            json!({"workerid": "w/n-{node}/{uid}", "ca_cert": "{x} {", "list": ["n-{node}"], "n": 1});
        assert_eq!(filled(template.to_string().as_bytes()), Ok(expected));
    }

    #[test]
    fn what_is_no_object_is_refused() {
        assert_eq!(filled(b"[]"), Err(TemplateError::NotJson));
        assert_eq!(filled(b"{"), Err(TemplateError::NotJson));
        let deep = format!("{{\"a\":{}1{}}}", "[".repeat(40), "]".repeat(40));
        assert_eq!(filled(deep.as_bytes()), Err(TemplateError::TooDeep));
        assert_eq!(filled(&vec![b' '; MAX_BYTES + 1]), Err(TemplateError::TooLarge));
    }
}
