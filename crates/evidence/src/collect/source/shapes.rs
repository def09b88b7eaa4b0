//! Structure of files that are never collected: fields of a kubeconfig, key types, and whether a key matches
//! its certificate. No value leaves this module.

use std::fmt::Write as _;
use std::path::Path;

use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::Value;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::{Source, certificates};
use crate::collect::host::Host;
use crate::collect::piece::Trouble;
use crate::collect::sink::{Sink, shown};

const MAX_FILE: u64 = 256 << 10;

/// Maximum number of lines per file. A kubeconfig has 20.
const MAX_LINES: usize = 200;

/// Maximum length of a field name; longer texts are not names.
const MAX_NAME: usize = 80;

const MAX_DEPTH: usize = 12;

pub(super) struct Shapes {
    pub(super) to: String,
    pub(super) paths: Vec<String>,
}

// === impl Shapes ===

impl Source for Shapes {
    fn collect(&self, host: &Host, sink: &mut Sink) -> Result<(), Trouble> {
        let mut text = String::new();
        for pattern in &self.paths {
            for path in host.find(pattern, sink.deadline())? {
                sink.time_left()?;
                let name = shown(&path.to_string_lossy());
                match host.read(&path, MAX_FILE) {
                    Ok(content) => {
                        // Writing to a string cannot fail.
                        let _ = writeln!(text, "{name}: {} bytes", content.len());
                        text += &describe(host, &path, &String::from_utf8_lossy(&content));
                    }
                    Err(error) => text += &format!("{name}: cannot be read: {error}\n"),
                }
            }
        }
        if text.is_empty() {
            return Err(Trouble::Absent);
        }
        sink.text(&self.to, "shapes", &text);
        Ok(())
    }
}

fn describe(host: &Host, path: &Path, text: &str) -> String {
    let trimmed = text.trim_start();
    let mut lines = Vec::new();
    if trimmed.contains("-----BEGIN") {
        // The certificate is in the same file or next to it.
        let beside = host.read(path.with_extension("crt"), MAX_FILE).unwrap_or_default();
        pem(text, &[text, &String::from_utf8_lossy(&beside)], &mut lines);
    } else if let Ok(value) = serde_json::from_str::<Value>(trimmed) {
        json(&value, 1, &mut lines);
    } else if trimmed.starts_with("#!") {
        lines.push("  a script".to_owned());
    } else {
        yaml(text, &mut lines);
        let keys = certificates::fields(text, &["client-key-data"]);
        let chains = certificates::fields(text, &["client-certificate-data"]);
        let chains: Vec<&str> = chains.iter().map(|(_, pem)| pem.as_str()).collect();
        for (_, key) in &keys {
            pem(key, &chains, &mut lines);
        }
    }
    let left_out = lines.len().saturating_sub(MAX_LINES);
    lines.truncate(MAX_LINES);
    if left_out > 0 {
        lines.push(format!("  and {left_out} more lines"));
    }
    lines.iter().map(|line| format!("{line}\n")).collect()
}

/// Describes type and size of each block; for keys, whether one of the certificates matches.
fn pem(text: &str, certificates_in: &[&str], lines: &mut Vec<String>) {
    let mut block: Option<(&str, usize)> = None;
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        let (at, word) = (start, line.trim());
        start += line.len();
        if let Some(label) = word.strip_prefix("-----BEGIN ").and_then(|rest| rest.strip_suffix("-----")) {
            block = is_name(label).then_some((label, at));
        } else if word.starts_with("-----END ")
            && let Some((label, begin)) = block.take()
        {
            let body = &text[begin..start];
            let mut told = format!("  {label}, {} bytes of PEM", body.len());
            if label.ends_with("PRIVATE KEY") {
                told += match belongs(body, certificates_in) {
                    Some(true) => ", its certificate belongs to it",
                    Some(false) => ", DOES NOT BELONG to the certificate beside it",
                    None => ", no certificate to compare with",
                };
            }
            lines.push(told);
        }
    }
}

/// Returns whether the first certificate in any of the texts matches this key; `None` if there is none or the
/// key is unsupported.
fn belongs(key: &str, texts: &[&str]) -> Option<bool> {
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).ok()?;
    let key = rustls::crypto::aws_lc_rs::sign::any_supported_type(&key).ok()?;
    let public = key.public_key()?;
    let leaves = texts.iter().filter_map(|text| certificates::in_pem(text).into_iter().next());
    let mut any = None;
    for der in leaves {
        let Ok((_, certificate)) = X509Certificate::from_der(&der) else { continue };
        let same = certificate.public_key().raw == public.as_ref();
        any = Some(any.unwrap_or(false) || same);
    }
    any
}

fn json(value: &Value, depth: usize, lines: &mut Vec<String>) {
    let indent = "  ".repeat(depth);
    match value {
        Value::Object(fields) if depth < MAX_DEPTH => {
            for (name, value) in fields {
                let name = if is_name(name) { name.as_str() } else { "?" };
                lines.push(format!("{indent}{name}{}", kind(value)));
                json(value, depth + 1, lines);
            }
        }
        // One element shows the structure of a list.
        Value::Array(values) if depth < MAX_DEPTH => {
            values.iter().take(1).for_each(|value| json(value, depth + 1, lines));
        }
        _ => {}
    }
}

fn kind(value: &Value) -> String {
    match value {
        Value::Null => " (nothing)".to_owned(),
        Value::Bool(_) => " (yes or no)".to_owned(),
        Value::Number(_) => " (a number)".to_owned(),
        Value::String(text) => size(text),
        Value::Array(values) => format!(" (a list of {})", values.len()),
        Value::Object(_) => String::new(),
    }
}

/// Describes YAML lines without values. Text that is not certainly a field name is omitted.
fn yaml(text: &str, lines: &mut Vec<String>) {
    // Lines of a text block are indented deeper than its field.
    let mut block: Option<usize> = None;
    for line in text.lines() {
        let indent = line.len() - line.trim_start().len();
        let word = line.trim();
        if block.is_some_and(|depth| word.is_empty() || indent > depth) {
            continue;
        }
        block = None;
        if word.is_empty() || word.starts_with('#') {
            continue;
        }
        let (dash, rest) = word.strip_prefix("- ").map_or(("", word), |rest| ("- ", rest));
        let field = rest.strip_suffix(':').map(|name| (name, "")).or_else(|| rest.split_once(": "));
        let told = match field.filter(|(name, _)| is_name(name.trim_matches('"'))) {
            Some((name, "")) => name.to_owned(),
            Some((name, value)) => {
                if value.starts_with(['|', '>']) {
                    block = Some(indent);
                    format!("{name} (a block of text)")
                } else {
                    format!("{name}{}", size(value))
                }
            }
            None => size(rest).trim_start().to_owned(),
        };
        lines.push(format!("  {}{dash}{told}", " ".repeat(indent.min(MAX_DEPTH * 2))));
    }
}

/// Formats a size in brackets: after a colon, even a length looks like a secret to scanners.
fn size(value: &str) -> String {
    match value.trim().trim_matches('"').len() {
        0 => " (empty)".to_owned(),
        length => format!(" ({length} characters)"),
    }
}

fn is_name(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || "._-/ ".contains(c);
    !name.is_empty() && name.len() <= MAX_NAME && name.chars().all(fits) && !name.starts_with(' ')
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use landfall_pki::{Authority, Leaf, Purpose};

    use super::*;

    fn shape(root: &Path, path: &str) -> String {
        let host = Host::at(root).unwrap();
        let text = host.read(path, MAX_FILE).unwrap();
        describe(&host, Path::new(path), &String::from_utf8(text).unwrap())
    }

    #[test]
    fn keys_are_told_by_kind_and_by_the_certificate_they_belong_to() {
        let authority = Authority::new("ca", 30).unwrap();
        let [one, two] = ["one", "two"]
            .map(|name| authority.issue(&Leaf::new(name, Purpose::Serve).names([name])).unwrap());
        let root = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(root.path().join(name), text).unwrap();
        write("good.key", one.key.expose());
        write("good.crt", &one.certificate);
        write("bad.key", one.key.expose());
        write("bad.crt", &two.certificate);
        write("alone.key", one.key.expose());
        write("both.pem", &format!("{}{}", one.certificate, one.key.expose()));
        assert!(
            shape(root.path(), "/good.key")
                .ends_with("PRIVATE KEY, 241 bytes of PEM, its certificate belongs to it\n")
        );
        assert!(shape(root.path(), "/bad.key").contains("DOES NOT BELONG"));
        assert!(shape(root.path(), "/alone.key").contains("no certificate to compare with"));
        assert!(shape(root.path(), "/both.pem").contains("its certificate belongs to it"));
        let encoded = |text: &str| STANDARD.encode(text);
        let config = format!(
            "apiVersion: v1\nusers:\n- name: me\n  user:\n    client-certificate-data: {}\n    client-key-data: {}\n    token: hunter2-hunter2\n",
            encoded(&one.certificate),
            encoded(one.key.expose())
        );
        write("config", &config);
        let told = shape(root.path(), "/config");
        assert!(told.contains("      token (15 characters)\n") && told.contains("belongs to it"), "{told}");
        assert!(!told.contains("hunter2"), "{told}");
    }

    #[test]
    fn no_value_is_told_in_any_form() {
        let root = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(root.path().join(name), text).unwrap();
        write(
            "a",
            "#cloud-config\nchpasswd:\n  list: |\n    root:hunter2\n    password: hunter2\nruncmd:\n- hunter2\n- [a, hunter2]\nusers:\n  - passwd: hunter2\n    hunter2\nhunter2!: 3\n",
        );
        write("b", r#"{"auths":{"r.example":{"auth":"hunter2"}},"hunter2!":[1,"hunter2"]}"#);
        write("c", "#!/bin/sh\nexport PASSWORD=hunter2\n");
        write("d", "root:hunter2:1:2:::\n");
        for path in ["/a", "/b", "/c", "/d"] {
            let told = shape(root.path(), path);
            assert!(!told.contains("hunter2"), "{told}");
        }
        assert!(shape(root.path(), "/b").contains("    r.example\n      auth (7 characters)\n"));
    }
}
