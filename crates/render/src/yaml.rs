//! Values as YAML. Never text templates: what a value holds cannot break what is around it.

use serde_json::Value;

use crate::RenderError;

/// One file with these documents.
pub(crate) fn documents(values: &[Value]) -> Result<String, RenderError> {
    let options = serde_saphyr::ser_options! { indent_step: 2, compact_list_indent: true };
    serde_saphyr::to_string_multiple_with_options(values, options).map_err(RenderError::Yaml)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

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
}
