//! Public facts of certificates in files: subject, issuer, validity and names.
//!
//! Keys in the same files are skipped and never leave this module.

use std::net::{Ipv4Addr, Ipv6Addr};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::Source;
use crate::bundle::sha256;
use crate::collect::host::Host;
use crate::collect::piece::Trouble;
use crate::collect::sink::{Sink, shown};

/// A bundle of all public CA certificates is about 250 KiB.
const MAX_FILE: u64 = 1 << 20;

/// Maximum number of certificates per file: enough for a chain, not for a bundle of all public CA
/// certificates.
const MAX_PER_FILE: usize = 20;

pub(super) struct Certificates {
    pub(super) to: String,
    pub(super) paths: Vec<String>,
}

// === impl Certificates ===

impl Source for Certificates {
    fn collect(&self, host: &Host, sink: &mut Sink) -> Result<(), Trouble> {
        let mut text = String::new();
        for pattern in &self.paths {
            for path in host.find(pattern, sink.deadline())? {
                sink.time_left()?;
                let told = match host.read(&path, MAX_FILE) {
                    Ok(content) => in_file(&String::from_utf8_lossy(&content)),
                    Err(error) => vec![format!("cannot be read: {error}\n")],
                };
                let name = shown(&path.to_string_lossy());
                for facts in told {
                    text += &format!("{name}\n{facts}\n");
                }
            }
        }
        if text.is_empty() {
            return Err(Trouble::Absent);
        }
        sink.text(&self.to, "certificates", &text);
        Ok(())
    }
}

/// Returns the facts of the certificates in a PEM file, or in Base64 in kubeconfig fields.
fn in_file(text: &str) -> Vec<String> {
    let mut found: Vec<String> = in_pem(text).iter().map(|der| facts(der)).collect();
    for (name, pem) in fields(text, &["certificate-authority-data", "client-certificate-data"]) {
        found.extend(in_pem(&pem).iter().map(|der| format!("  field: {name}\n{}", facts(der))));
    }
    found.truncate(MAX_PER_FILE);
    found
}

/// Decodes the Base64 content of fields with these names.
pub(super) fn fields<'t>(text: &'t str, names: &[&str]) -> Vec<(&'t str, String)> {
    let mut found = Vec::new();
    for line in text.lines() {
        let Some((name, value)) = line.split_once(':') else { continue };
        let name = name.trim().trim_start_matches("- ");
        if names.contains(&name)
            && found.len() < MAX_PER_FILE
            && let Ok(content) = STANDARD.decode(value.trim().trim_matches('"'))
        {
            found.push((name, String::from_utf8_lossy(&content).into_owned()));
        }
    }
    found
}

/// Extracts only the certificates from a text.
pub(super) fn in_pem(text: &str) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    let mut body: Option<String> = None;
    for line in text.lines().map(str::trim) {
        match line {
            "-----BEGIN CERTIFICATE-----" | "-----BEGIN TRUSTED CERTIFICATE-----" => {
                body = Some(String::new());
            }
            _ if line.starts_with("-----") => {
                if let Some(der) = body.take().and_then(|body| STANDARD.decode(body).ok())
                    && found.len() < MAX_PER_FILE
                {
                    found.push(der);
                }
            }
            _ => {
                if let Some(body) = &mut body {
                    body.push_str(line);
                }
            }
        }
    }
    found
}

/// Formats the public facts of one certificate, indented.
pub(super) fn facts(der: &[u8]) -> String {
    let Ok((_, certificate)) = X509Certificate::from_der(der) else {
        return "  a certificate that cannot be parsed\n".to_owned();
    };
    let validity = certificate.validity();
    let time = |seconds: i64| {
        Timestamp::from_second(seconds).map_or_else(|_| "?".to_owned(), |time| time.to_string())
    };
    let now = Timestamp::now().as_second();
    let state = if now < validity.not_before.timestamp() {
        " (not valid yet)"
    } else if now > validity.not_after.timestamp() {
        " (expired)"
    } else {
        ""
    };
    let names = certificate.subject_alternative_name().ok().flatten();
    let names: Vec<String> =
        names.into_iter().flat_map(|names| names.value.general_names.iter().map(name)).collect();
    format!(
        "  subject: {}\n  issuer: {}\n  serial: {}\n  not before: {}\n  not after: {}{state}\n  names: {}\n  authority: {}\n  sha256: {}\n",
        shown(&certificate.subject().to_string()),
        shown(&certificate.issuer().to_string()),
        certificate.raw_serial_as_string(),
        time(validity.not_before.timestamp()),
        time(validity.not_after.timestamp()),
        shown(&names.join(", ")),
        if certificate.is_ca() { "yes" } else { "no" },
        sha256(der),
    )
}

fn name(name: &GeneralName<'_>) -> String {
    match name {
        GeneralName::DNSName(name) => (*name).to_owned(),
        GeneralName::IPAddress(bytes) => match (<[u8; 4]>::try_from(*bytes), <[u8; 16]>::try_from(*bytes)) {
            (Ok(address), _) => Ipv4Addr::from(address).to_string(),
            (_, Ok(address)) => Ipv6Addr::from(address).to_string(),
            _ => "an address of odd length".to_owned(),
        },
        GeneralName::URI(uri) => (*uri).to_owned(),
        GeneralName::RFC822Name(mail) => (*mail).to_owned(),
        other => format!("{other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_drive_a_terminal_or_forge_lines() {
        let authority = landfall_pki::Authority::new("evil\x1b[2J\n  not after: never", 30).unwrap();
        let facts = in_file(authority.certificate()).concat();
        assert!(facts.contains("subject: CN=evil\\u{1b}[2J\\n  not after: never\n"), "{facts}");
        assert!(!facts.contains('\x1b'), "{facts}");
    }
}
