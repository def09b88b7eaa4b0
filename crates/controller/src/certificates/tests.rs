use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair, SanType};

use super::*;

const NODE: &str = "worker-1";

#[derive(Clone)]
struct Asked {
    signer: &'static str,
    user: &'static str,
    groups: Vec<&'static str>,
    usages: Vec<&'static str>,
    common_name: &'static str,
    organizations: Vec<&'static str>,
    country: bool,
    names: Vec<&'static str>,
    purpose: Option<ExtendedKeyUsagePurpose>,
    created: &'static str,
}

fn first() -> Asked {
    Asked {
        signer: CLIENT_SIGNER,
        user: "system:bootstrap:abcdef",
        groups: vec!["system:bootstrappers", "system:authenticated"],
        usages: vec!["digital signature", "client auth"],
        common_name: "system:node:worker-1",
        organizations: vec!["system:nodes"],
        country: false,
        names: Vec::new(),
        purpose: None,
        created: "2026-01-01T10:30:00Z",
    }
}

fn serving() -> Asked {
    Asked {
        signer: SERVING_SIGNER,
        user: "system:node:worker-1",
        groups: vec!["system:nodes"],
        usages: vec!["digital signature", "key encipherment", "server auth"],
        names: vec!["worker-1.corp", "10.0.0.7", "fd00::7"],
        ..first()
    }
}

fn request(asked: &Asked) -> SigningRequest {
    let mut parameters = CertificateParams::default();
    parameters.distinguished_name.push(DnType::CommonName, asked.common_name);
    for (number, organization) in asked.organizations.iter().enumerate() {
        // rcgen writes one attribute of each kind only, so the second value uses another kind.
        let kind = if number == 0 { DnType::OrganizationName } else { DnType::OrganizationalUnitName };
        parameters.distinguished_name.push(kind, *organization);
    }
    if asked.country {
        parameters.distinguished_name.push(DnType::CountryName, "XX");
    }
    for name in &asked.names {
        parameters.subject_alt_names.push(match name.parse() {
            Ok(address) => SanType::IpAddress(address),
            Err(_) if name.contains("://") => SanType::URI((*name).try_into().unwrap()),
            Err(_) => SanType::DnsName((*name).try_into().unwrap()),
        });
    }
    parameters.extended_key_usages.extend(asked.purpose.clone());
    let key = KeyPair::generate().unwrap();
    let owned = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect();
    SigningRequest {
        name: "csr-1".to_owned(),
        signer: asked.signer.to_owned(),
        user: asked.user.to_owned(),
        groups: owned(&asked.groups),
        request: parameters.serialize_request(&key).unwrap().pem().unwrap().into_bytes(),
        usages: owned(&asked.usages),
        created: asked.created.parse().unwrap(),
    }
}

fn judged(request: &SigningRequest) -> Result<(), Foreign> {
    let addresses = ["worker-1.corp", "10.0.0.7", "fd00:0:0::7"].map(str::to_owned).into();
    let bootstrap_users = ["system:serviceaccount:mco:node-bootstrapper".to_owned()];
    let expected = Expected {
        node: NODE,
        from: "2026-01-01T10:00:00Z".parse().unwrap(),
        until: "2026-01-01T13:00:00Z".parse().unwrap(),
        addresses: &addresses,
        bootstrap_users: &bootstrap_users,
    };
    prove(request, &expected)
}

fn asked(asked: &Asked) -> Result<(), Foreign> {
    judged(&request(asked))
}

#[test]
fn what_kubelets_ask_for_is_theirs() {
    assert_eq!(asked(&first()), Ok(()));
    assert_eq!(asked(&serving()), Ok(()));
    let renewal = Asked { user: "system:node:worker-1", groups: vec!["system:nodes"], ..first() };
    assert_eq!(asked(&renewal), Ok(()));
    let openshift =
        Asked { user: "system:serviceaccount:mco:node-bootstrapper", groups: Vec::new(), ..first() };
    assert_eq!(asked(&openshift), Ok(()));
    assert_eq!(claimed_node(&request(&first())).as_deref(), Some(NODE));
}

#[test]
fn everything_else_is_foreign() {
    let cases: Vec<(&str, Asked, &str)> = vec![
        ("too early", Asked { created: "2026-01-01T09:59:59Z", ..first() }, "another time"),
        ("too late", Asked { created: "2026-01-01T13:00:01Z", ..first() }, "another time"),
        ("another signer", Asked { signer: "kubernetes.io/kube-apiserver-client", ..first() }, "signer"),
        ("anybody", Asked { user: "eve", groups: vec!["system:authenticated"], ..first() }, "`eve`"),
        (
            "another node",
            Asked { user: "system:node:worker-2", groups: vec!["system:nodes"], ..first() },
            "worker-2",
        ),
        (
            "node by name only",
            Asked { user: "system:node:worker-1", groups: Vec::new(), ..serving() },
            "does not ask",
        ),
        (
            "bootstrap token for serving",
            Asked { user: "system:bootstrap:abcdef", groups: vec!["system:bootstrappers"], ..serving() },
            "does not ask",
        ),
        ("another subject", Asked { common_name: "system:node:worker-2", ..first() }, "worker-2"),
        ("longer name", Asked { common_name: "system:node:worker-11", ..first() }, "worker-11"),
        ("admin", Asked { organizations: vec!["system:masters"], ..first() }, "system:masters"),
        ("no group", Asked { organizations: Vec::new(), ..first() }, "it is for"),
        (
            "one more attribute",
            Asked { organizations: vec!["system:nodes", "system:masters"], ..first() },
            "it is for",
        ),
        ("a country", Asked { country: true, ..first() }, "it is for"),
        ("client with a name", Asked { names: vec!["api.corp"], ..first() }, "api.corp"),
        ("foreign name", Asked { names: vec!["worker-1.corp", "api.corp"], ..serving() }, "api.corp"),
        ("foreign address", Asked { names: vec!["10.0.0.8"], ..serving() }, "10.0.0.8"),
        ("no name", Asked { names: Vec::new(), ..serving() }, "no address"),
        ("a URI", Asked { names: vec!["spiffe://x"], ..serving() }, "do not have"),
        ("both uses", Asked { usages: vec!["client auth", "server auth"], ..first() }, "server auth"),
        ("signing", Asked { usages: vec!["client auth", "cert sign"], ..first() }, "cert sign"),
        ("no use", Asked { usages: vec!["digital signature"], ..first() }, "made for"),
    ];
    for (what, case, reason) in cases {
        let foreign = asked(&case).expect_err(what).to_string();
        assert!(foreign.contains(reason), "{what}: {foreign}");
    }
    let usual = Asked { purpose: Some(ExtendedKeyUsagePurpose::ClientAuth), ..first() };
    assert_eq!(asked(&usual), Ok(()), "the uses may be in the request as well");
}

#[test]
fn broken_bytes_are_no_request() {
    let good = request(&first());
    for bytes in [
        Vec::new(),
        b"-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n".to_vec(),
        [good.request.clone(), good.request.clone()].concat(),
        vec![b'A'; MAX_REQUEST + 1],
    ] {
        let broken = SigningRequest { request: bytes, ..good.clone() };
        assert_eq!(judged(&broken), Err(Foreign::Unreadable));
        assert_eq!(claimed_node(&broken), None);
    }
    for end in 0..good.request.len() {
        let cut = SigningRequest { request: good.request[..end].to_vec(), ..good.clone() };
        let _ = judged(&cut);
    }
}
