//! Rendering of manifests as a Helm chart.
//!
//! The objects are created with placeholders for values. In their text, Helm expressions replace the
//! placeholders. The chart's schema validates each value, so that no value can change the structure of an
//! object.

use serde_json::{Map, Value, json};

use crate::package::HostFile;
use crate::{RenderError, names, yaml};

/// Placeholders for settings of roles.
pub const NAMESPACE: &str = "landfall-value-namespace";
pub const IMAGE: &str = "landfall-value-image";
pub(crate) const STORAGE: &str = "landfall-value-storage";
pub(crate) const GATHERERS: &str = "landfall-value-gatherers";
/// Placeholders that this module inserts into workloads and accounts.
const REPLICAS: &str = "landfall-value-replicas";
const NODE_SELECTOR: &str = "landfall-value-node-selector";
const TOLERATIONS: &str = "landfall-value-tolerations";
const RESOURCES: &str = "landfall-value-resources";
const PULL_SECRETS: &str = "landfall-value-pull-secrets";
const ARGUMENTS: &str = "landfall-value-extra-arguments";

/// Expressions for placeholders that may be part of a string. The schema rejects values that would end the
/// string.
const TEXTS: [(&str, &str); 3] =
    [(NAMESPACE, ".Values.namespace"), (IMAGE, ".Values.image"), (STORAGE, ".Values.storage")];
/// Expressions for placeholders that are a complete value, as JSON, which is YAML on one line.
const EXPRESSIONS: [(&str, &str); 6] = [
    (GATHERERS, "{{ toJson .Values.gatherers }}"),
    (REPLICAS, "{{ .Values.replicas }}"),
    (NODE_SELECTOR, "{{ toJson .Values.nodeSelector }}"),
    (TOLERATIONS, "{{ toJson .Values.tolerations }}"),
    (RESOURCES, "{{ toJson .Values.resources }}"),
    (PULL_SECRETS, "{{ toJson .Values.imagePullSecrets }}"),
];

/// Patterns of namespaces and images. They match all that [`names`] accepts, and no value that would end a
/// string.
const NAMESPACE_PATTERN: &str = "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$";
const IMAGE_PATTERN: &str = "^((\\[[0-9A-Fa-f:.]+\\]|[A-Za-z0-9._-]+)(:[0-9]+)?/)?[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*(:[A-Za-z0-9._-]+)?(@sha256:[0-9a-f]{64})?$";

/// Defaults of the chart's values, in addition to those found in the objects.
#[derive(Default)]
pub(crate) struct Values {
    pub(crate) namespace: Option<String>,
    pub(crate) image: Option<String>,
    pub(crate) storage: Option<&'static str>,
    /// The name of a group.
    pub(crate) gatherers: Option<String>,
}

pub(crate) fn files(
    name: &str,
    about: &str,
    objects: Vec<(&'static str, Value)>,
    values: Values,
) -> Result<Vec<HostFile>, RenderError> {
    let version = env!("CARGO_PKG_VERSION");
    let chart = json!({
        "apiVersion": "v2", "name": name, "version": version, "appVersion": version,
        "description": about, "type": "application",
    });
    let mut files = vec![HostFile::open("Chart.yaml", yaml::documents(&[chart])?)];
    let mut settings = Settings::new(values);
    for (number, (word, mut object)) in objects.into_iter().enumerate() {
        let kind = object["kind"].as_str().unwrap_or_default().to_owned();
        if ["DaemonSet", "Deployment", "StatefulSet"].contains(&kind.as_str()) {
            settings.take_from(&kind, &mut object);
        }
        // Set on the account, so that it also applies to pods created by a controller.
        if kind == "ServiceAccount" {
            object["imagePullSecrets"] = json!(PULL_SECRETS);
            let name =
                json!({"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}});
            settings.add("imagePullSecrets", json!([]), json!({"type": "array", "items": name}));
        }
        let mut text = template(&yaml::documents(&[object])?);
        if kind == "Namespace" {
            settings.add("createNamespace", json!(true), json!({"type": "boolean"}));
            text = format!("{{{{- if .Values.createNamespace }}}}\n{text}{{{{- end }}}}\n");
        }
        let path = format!("templates/{:02}-{name}-{word}.yaml", number + 1);
        files.push(match kind.as_str() {
            "Secret" => HostFile::secret(path, text),
            _ => HostFile::open(path, text),
        });
    }
    files.insert(1, HostFile::open("values.yaml", yaml::documents(&[Value::Object(settings.values)])?));
    let schema = json!({
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "additionalProperties": false,
        // Helm adds it to the values of every chart.
        "properties": with(settings.schema, "global", json!({"type": "object"})),
    });
    files.insert(2, HostFile::open("values.schema.json", format!("{schema:#}\n")));
    Ok(files)
}

/// The chart's values and their schema, as collected.
struct Settings {
    values: Map<String, Value>,
    schema: Map<String, Value>,
}

/// Converts text with placeholders to a Helm template.
fn template(text: &str) -> String {
    // Braces in the text itself are escaped.
    let mut text = text.replace("{{", "{{ \"{{\" }}");
    for (mark, expression) in EXPRESSIONS {
        text = text.replace(mark, expression);
    }
    let mut lines = String::new();
    for line in text.lines() {
        let line = with_texts(line);
        match line.strip_suffix(&format!("- {ARGUMENTS}")) {
            Some(indent) => {
                let each = format!("{indent}- {{{{ toJson . }}}}");
                lines += &format!("{{{{- range .Values.extraArguments }}}}\n{each}\n{{{{- end }}}}\n");
            }
            None => lines += &format!("{line}\n"),
        }
    }
    lines
}

/// Replaces the placeholders in a line. A complete value is quoted, because YAML would read some names as
/// numbers.
fn with_texts(line: &str) -> String {
    let mut line = line.to_owned();
    for (mark, value) in TEXTS {
        let whole = |before: &&str| before.ends_with(": ") || before.ends_with("- ");
        line = match line.strip_suffix(mark).filter(whole) {
            Some(before) => format!("{before}{{{{ toJson {value} }}}}"),
            None => line.replace(mark, &format!("{{{{ {value} }}}}")),
        };
    }
    line
}

fn with(mut map: Map<String, Value>, key: &str, value: Value) -> Map<String, Value> {
    map.insert(key.to_owned(), value);
    map
}

// === impl Settings ===

impl Settings {
    fn new(values: Values) -> Self {
        let mut settings = Self { values: Map::new(), schema: Map::new() };
        let text = |pattern: &str| json!({"type": "string", "pattern": pattern});
        if let Some(image) = values.image {
            settings.add("image", json!(image), text(IMAGE_PATTERN));
        }
        if let Some(namespace) = values.namespace {
            settings.add("namespace", json!(namespace), text(NAMESPACE_PATTERN));
        }
        if let Some(storage) = values.storage {
            settings.add("storage", json!(storage), text("^[0-9]+(Mi|Gi|Ti)$"));
        }
        if let Some(group) = values.gatherers {
            let one = json!({"type": "string", "minLength": 1, "not": {"enum": [names::EVERYBODY]}});
            settings.add("gatherers", json!(group), one);
        }
        settings
    }

    fn add(&mut self, key: &str, value: Value, schema: Value) {
        self.values.insert(key.to_owned(), value);
        self.schema.insert(key.to_owned(), schema);
    }

    /// Replaces the usual settings of a workload with placeholders. Their current values become the chart's
    /// defaults.
    fn take_from(&mut self, kind: &str, object: &mut Value) {
        let or = |value: Value, absent: Value| if value.is_null() { absent } else { value };
        // A workload with a file store has one writer, and a DaemonSet has one pod per node.
        if kind == "Deployment" {
            let replicas = std::mem::replace(&mut object["spec"]["replicas"], json!(REPLICAS));
            self.add("replicas", or(replicas, json!(1)), json!({"type": "integer", "minimum": 0}));
        }
        let pod = &mut object["spec"]["template"]["spec"];
        let selector = std::mem::replace(&mut pod["nodeSelector"], json!(NODE_SELECTOR));
        let texts = json!({"type": "object", "additionalProperties": {"type": "string"}});
        self.add("nodeSelector", or(selector, json!({})), texts);
        let tolerations = std::mem::replace(&mut pod["tolerations"], json!(TOLERATIONS));
        let list = json!({"type": "array", "items": {"type": "object"}});
        self.add("tolerations", or(tolerations, json!([])), list);
        let container = &mut pod["containers"][0];
        let resources = std::mem::replace(&mut container["resources"], json!(RESOURCES));
        self.add("resources", or(resources, json!({})), json!({"type": "object"}));
        if let Some(arguments) = container["args"].as_array_mut() {
            arguments.push(json!(ARGUMENTS));
            self.add("extraArguments", json!([]), json!({"type": "array", "items": {"type": "string"}}));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_become_expressions_and_nothing_else_does() {
        let text = "a: landfall-value-namespace\n- landfall-value-image\nb: x:landfall-value-namespace:y\nc: '{{ no }}'\nd:\n  - one\n  - landfall-value-extra-arguments\n";
        assert_eq!(
            template(text),
            "a: {{ toJson .Values.namespace }}\n- {{ toJson .Values.image }}\nb: x:{{ .Values.namespace }}:y\nc: '{{ \"{{\" }} no }}'\nd:\n  - one\n\
             {{- range .Values.extraArguments }}\n  - {{ toJson . }}\n{{- end }}\n"
        );
    }
}
