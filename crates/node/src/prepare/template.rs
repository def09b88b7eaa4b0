//! URL templates: `…/manifests/{{.Board}}/{{.OSVersion}}/torcx_manifest.json`, in the syntax of Go templates.
//!
//! The set of names is closed; anything else in braces is an error, not text.

pub const MANIFEST_URL: &str =
    "https://tectonic-torcx.release.core-os.net/manifests/{{.Board}}/{{.OSVersion}}/torcx_manifest.json";

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    #[error("`{template}` has `{{{{` without `}}}}`")]
    Open { template: String },
    #[error("`{template}` has `{{{{{name}}}}}`; known are {known}")]
    Unknown { template: String, name: String, known: String },
    #[error("`{url}` is neither an `https://` nor an `http://` URL")]
    Scheme { url: String },
}

/// Replaces the placeholders.
pub fn fill(template: &str, values: &[(&str, &str)]) -> Result<String, TemplateError> {
    let mut url = String::new();
    let mut rest = template;
    while let Some((before, behind)) = rest.split_once("{{") {
        url.push_str(before);
        let Some((name, after)) = behind.split_once("}}") else {
            return Err(TemplateError::Open { template: template.to_owned() });
        };
        let inner = name.trim().trim_matches('-').trim();
        let value = inner.strip_prefix('.').and_then(|inner| values.iter().find(|(name, _)| *name == inner));
        let Some((_, value)) = value else {
            let known: Vec<String> = values.iter().map(|(name, _)| format!("`{{{{.{name}}}}}`")).collect();
            return Err(TemplateError::Unknown {
                template: template.to_owned(),
                name: name.to_owned(),
                known: known.join(" and "),
            });
        };
        url.push_str(value);
        rest = after;
    }
    url.push_str(rest);
    if url.starts_with("https://") || url.starts_with("http://") {
        Ok(url)
    } else {
        Err(TemplateError::Scheme { url })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALUES: [(&str, &str); 2] = [("Board", "amd64-usr"), ("OSVersion", "1520.8.0")];

    #[test]
    fn holes_are_filled() {
        assert_eq!(
            fill(MANIFEST_URL, &VALUES).unwrap(),
            "https://tectonic-torcx.release.core-os.net/manifests/amd64-usr/1520.8.0/torcx_manifest.json"
        );
        assert_eq!(
            fill("http://h/{{ .OSVersion }}/{{.Board}}", &VALUES).unwrap(),
            "http://h/1520.8.0/amd64-usr"
        );
        assert_eq!(fill("https://h/plain", &VALUES).unwrap(), "https://h/plain");
    }

    #[test]
    fn other_holes_are_errors() {
        assert!(matches!(fill("https://h/{{.Boards}}", &VALUES), Err(TemplateError::Unknown { .. })));
        assert!(matches!(fill("https://h/{{Board}}", &VALUES), Err(TemplateError::Unknown { .. })));
        assert!(matches!(fill("https://h/{{.Board", &VALUES), Err(TemplateError::Open { .. })));
        assert!(matches!(fill("file:///etc/{{.Board}}", &VALUES), Err(TemplateError::Scheme { .. })));
    }
}
