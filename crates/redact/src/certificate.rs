//! Public facts of a certificate: subject, issuer, validity and names.
//!
//! Diagnosis needs them, and unlike the certificate they are readable.

use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};
use x509_parser::prelude::{FromDer as _, GeneralName, X509Certificate};
use x509_parser::time::ASN1Time;

/// Names are truncated here: they come from the certificate, and evidence must not grow without limit.
const NAME_MAX: usize = 256;

/// Alternative names beyond this are only counted.
const ALTERNATIVES_MAX: usize = 32;

/// Returns `***<CERT subject=(…) issuer=(…) not-before=… not-after=… san=(…) sha256=…>***`, or `None` if it
/// is not a certificate.
pub(crate) fn facts(der: &[u8]) -> Option<Box<[u8]>> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let mut facts = format!(
        "***<CERT subject=({}) issuer=({}) not-before={} not-after={}",
        plain(&certificate.subject().to_string()),
        plain(&certificate.issuer().to_string()),
        time(&certificate.validity().not_before),
        time(&certificate.validity().not_after),
    );
    if let Ok(Some(alternatives)) = certificate.subject_alternative_name() {
        let names = &alternatives.value.general_names;
        let shown: Vec<String> =
            names.iter().take(ALTERNATIVES_MAX).map(|name| plain(&alternative(name))).collect();
        facts.push_str(" san=(");
        facts.push_str(&shown.join(", "));
        if names.len() > ALTERNATIVES_MAX {
            let _ = write!(facts, ", {} more", names.len() - ALTERNATIVES_MAX);
        }
        facts.push(')');
    }
    facts.push_str(" sha256=");
    facts.push_str(&hex::encode(Sha256::digest(der)));
    facts.push_str(">***");
    Some(facts.into_bytes().into())
}

fn alternative(name: &GeneralName<'_>) -> String {
    match name {
        GeneralName::DNSName(name) => format!("DNS:{name}"),
        GeneralName::URI(uri) => format!("URI:{uri}"),
        GeneralName::RFC822Name(name) => format!("email:{name}"),
        GeneralName::IPAddress(bytes) => match (<[u8; 4]>::try_from(*bytes), <[u8; 16]>::try_from(*bytes)) {
            (Ok(v4), _) => format!("IP:{}", std::net::Ipv4Addr::from(v4)),
            (_, Ok(v6)) => format!("IP:{}", std::net::Ipv6Addr::from(v6)),
            _ => "IP:unreadable".to_owned(),
        },
        _ => "other".to_owned(),
    }
}

/// Makes a name safe inside JSON, YAML and log lines.
fn plain(name: &str) -> String {
    let safe = |c: char| if c.is_control() || matches!(c, '"' | '\\' | '<' | '>') { '\'' } else { c };
    name.chars().take(NAME_MAX).map(safe).collect()
}

fn time(time: &ASN1Time) -> String {
    let time = time.to_datetime();
    format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z",
        time.year(),
        u8::from(time.month()),
        time.day(),
        time.hour(),
        time.minute(),
        time.second()
    )
}
