//! The user of a client certificate, parsed exactly as in kube-apiserver, and the headers that forward it.

use std::collections::BTreeMap;

use hyper::header::{HeaderName, HeaderValue};
use landfall_cluster::User;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use sha2::{Digest as _, Sha256};
use x509_parser::asn1_rs::Tag;
use x509_parser::der_parser::oid;
use x509_parser::prelude::{AttributeTypeAndValue, FromDer as _, X509Certificate};

use crate::config::FrontProxy;

const CREDENTIAL: &str = "authentication.kubernetes.io/credential-id";
/// Kubernetes' own OID for a user's UID in a certificate.
const UID: x509_parser::der_parser::Oid<'static> = oid!(1.3.6.1.4.1.57683.2);
const UID_HEADER: HeaderName = HeaderName::from_static("x-remote-uid");
/// Characters allowed unescaped in the key part of a header name; kube-apiserver decodes the others.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_');

/// Reason why a valid certificate's user cannot be forwarded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UnfitError {
    #[error("the certificate cannot be read")]
    Unreadable,
    #[error("the certificate's subject holds text that no header can carry unchanged")]
    Subject,
}

/// Returns the user of a verified certificate; `None` when it contains no user name.
pub(crate) fn user(certificate: &[u8]) -> Result<Option<User>, UnfitError> {
    let (_, parsed) = X509Certificate::from_der(certificate).map_err(|_| UnfitError::Unreadable)?;
    let subject = parsed.subject();
    // As in Go, the last of several names counts.
    let mut name = None;
    for attribute in subject.iter_common_name() {
        name = Some(text(attribute)?);
    }
    let Some(name) = name.filter(|name| !name.is_empty()) else { return Ok(None) };
    let groups: Result<Vec<String>, _> = subject.iter_organization().map(text).collect();
    let mut uid = None;
    for attribute in subject.iter_by_oid(&UID) {
        uid = Some(text(attribute)?);
    }
    let digest = hex::encode(Sha256::digest(certificate));
    Ok(Some(User {
        name,
        uid,
        // An empty group name grants no membership.
        groups: groups?.into_iter().filter(|group| !group.is_empty()).collect(),
        extra: BTreeMap::from([(CREDENTIAL.to_owned(), vec![format!("X509SHA256={digest}")])]),
    }))
}

/// Returns the text of an attribute if a header can transport it unchanged. Receivers trim blanks at both ends of a
/// header value, so that a name with such blanks would arrive as another user's.
fn text(attribute: &AttributeTypeAndValue<'_>) -> Result<String, UnfitError> {
    let value = attribute.attr_value();
    if !matches!(value.tag(), Tag::Utf8String | Tag::PrintableString | Tag::Ia5String | Tag::NumericString) {
        return Err(UnfitError::Subject);
    }
    let text = std::str::from_utf8(value.data).map_err(|_| UnfitError::Subject)?;
    let carried = !text.chars().any(char::is_control) && text.trim() == text;
    if carried { Ok(text.to_owned()) } else { Err(UnfitError::Subject) }
}

/// Returns the headers that forward this user to kube-apiserver.
pub(crate) fn headers(user: &User, names: &FrontProxy) -> Result<Vec<(HeaderName, HeaderValue)>, UnfitError> {
    let mut headers = Vec::new();
    let mut add = |name: &str, value: &str| {
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| UnfitError::Subject)?;
        let value = HeaderValue::from_bytes(value.as_bytes()).map_err(|_| UnfitError::Subject)?;
        headers.push((name, value));
        Ok(())
    };
    let first = |names: &[String]| names.first().cloned().ok_or(UnfitError::Subject);
    add(&first(&names.username_headers)?, &user.name)?;
    let group_header = first(&names.group_headers)?;
    for group in &user.groups {
        add(&group_header, group)?;
    }
    let prefix = first(&names.extra_header_prefixes)?;
    for (key, values) in &user.extra {
        for value in values {
            add(&format!("{prefix}{}", utf8_percent_encode(key, ESCAPED)), value)?;
        }
    }
    if let Some(uid) = &user.uid {
        add(UID_HEADER.as_str(), uid)?;
    }
    Ok(headers)
}

#[cfg(test)]
mod tests {
    use landfall_pki::{Authority, Leaf, Purpose};
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject as _;

    use super::*;

    fn of(name: &str, group: Option<&str>) -> Result<Option<User>, UnfitError> {
        let mut leaf = Leaf::new(name, Purpose::Call);
        if let Some(group) = group {
            leaf = leaf.organization(group);
        }
        let issued = Authority::new("test", 1).unwrap().issue(&leaf).unwrap();
        user(&CertificateDer::from_pem_slice(issued.certificate.as_bytes()).unwrap())
    }

    #[test]
    fn a_certificate_names_user_groups_and_itself() {
        let user = of("system:admin", Some("system:masters")).unwrap().unwrap();
        assert_eq!(
            (user.name.as_str(), user.groups.as_slice()),
            ("system:admin", &["system:masters".to_owned()][..])
        );
        assert!(
            user.extra[CREDENTIAL][0].starts_with("X509SHA256=") && user.extra[CREDENTIAL][0].len() == 75
        );
        let names = FrontProxy {
            pair: landfall_net::CertificateFiles { certificate: "x".into(), key: "x".into() },
            authority: "x".into(),
            username_headers: vec!["X-Remote-User".to_owned()],
            group_headers: vec!["X-Remote-Group".to_owned()],
            extra_header_prefixes: vec!["X-Remote-Extra-".to_owned()],
        };
        let headers = headers(&user, &names).unwrap();
        let lines: Vec<String> =
            headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect();
        assert_eq!(lines[0], "x-remote-user: system:admin");
        assert_eq!(lines[1], "x-remote-group: system:masters");
        assert!(
            lines[2].starts_with("x-remote-extra-authentication.kubernetes.io%2fcredential-id: X509SHA256=")
        );
    }

    #[test]
    fn a_name_that_a_header_would_change_is_nobodys() {
        for (name, group) in [
            ("system:admin ", None),
            (" system:admin", None),
            ("x\r\nX-Remote-Group: system:masters", None),
            ("x\0", None),
            ("x", Some("system:masters ")),
            ("x", Some("a\nb")),
            ("x\u{a0}", None),
        ] {
            assert_eq!(of(name, group), Err(UnfitError::Subject), "{name:?} {group:?}");
        }
        assert_eq!(of("", Some("system:masters")), Ok(None));
        assert_eq!(of("a, b", Some("c, d")).unwrap().unwrap().groups, ["c, d"]);
    }

    #[test]
    fn foreign_bytes_are_no_certificate() {
        assert_eq!(user(b"\x30\x03abc"), Err(UnfitError::Unreadable));
    }
}
