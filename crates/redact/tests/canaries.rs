//! Planted secrets: each kind must be removed in all encodings and carriers.

#![expect(
    clippy::unwrap_used,
    clippy::format_collect,
    reason = "a test fails by panicking, and is not pressed for time"
)]

use std::io::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE, URL_SAFE_NO_PAD};
use landfall_model::Secret;
use landfall_redact::{Format, Kind, Length, Options, Redactor};

/// A secret in a form that its pattern recognizes: the surrounding text, and the part that must be removed.
struct Canary {
    name: &'static str,
    text: String,
    secret: String,
}

fn canaries() -> Vec<Canary> {
    let canary =
        |name, text: &str, secret: &str| Canary { name, text: text.to_owned(), secret: secret.to_owned() };
    let pem_body = "MIIEowIBAAKCAQEAx7q9KfT3mZ0dLr5VYwq8sJtUe2nGhBvCkXpOiAuDfEjSlMzW\nQy6RtNbHgVcPo1IaLs4KwXdEmZuYq0TjRf7GhJ9vBn3M";
    let pem = format!("-----BEGIN RSA PRIVATE KEY-----\n{pem_body}\n-----END RSA PRIVATE KEY-----\n");
    vec![
        canary("BTOKEN", "kubeadm join 10.0.0.1:6443 --token 8df4zm.5jyv2nrxb18y84jq", "5jyv2nrxb18y84jq"),
        canary(
            "CERTKEY",
            "kubeadm join --certificate-key 3c1f7ea09b5d2468ace013579bdf2468ace013579bdf2468ace0fedcba987654",
            "3c1f7ea09b5d2468ace013579bdf2468ace013579bdf2468ace0fedcba987654",
        ),
        Canary { name: "PRIVKEY", text: pem, secret: pem_body.to_owned() },
        canary(
            "KCFG",
            "    client-key-data: bm90LWEta2V5LWJ1dC1sb25nLWVub3VnaA==",
            "bm90LWEta2V5LWJ1dC1sb25nLWVub3VnaA==",
        ),
        canary(
            "JWT",
            "got eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrdWJlLXN5c3RlbSJ9.c2lnbmF0dXJlLWlzLWhlcmU",
            "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrdWJlLXN5c3RlbSJ9.c2lnbmF0dXJlLWlzLWhlcmU",
        ),
        canary("BEARER", "Authorization: Bearer k8s-aws-v1.Zq8Lw3Xn5Tb7Vc", "k8s-aws-v1.Zq8Lw3Xn5Tb7Vc"),
        canary("AWSKEY", "using key AKIAQ7ZMX3LN5TVB2CWD for s3", "AKIAQ7ZMX3LN5TVB2CWD"),
        canary(
            "AWSSECRET",
            "aws_secret_access_key = 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",
            "kR7/Zp0wQeXn+T2vB8sJ4dGmYc6HfLa1uI9oPq3E",
        ),
        canary(
            "GCPKEY",
            r#"{"private_key": "Zm9vLWJhci1iYXotcXV4LTEyMzQ="}"#,
            "Zm9vLWJhci1iYXotcXV4LTEyMzQ=",
        ),
        canary("AZSECRET", r#"{"aadClientSecret": "xY8Q~h2KpLm0Zr-t5Vw"}"#, "xY8Q~h2KpLm0Zr-t5Vw"),
        canary(
            "SAS",
            "https://a.blob.core.windows.net/c?sv=2024&sig=qWeRtYuIoP1234567890AsDfGh",
            "qWeRtYuIoP1234567890AsDfGh",
        ),
        canary(
            "PRESIGN",
            "https://b.s3.amazonaws.com/k?X-Amz-Signature=9f86d081884c7d659a2feaa0c55ad015",
            "9f86d081884c7d659a2feaa0c55ad015",
        ),
        canary(
            "REGAUTH",
            r#"{"auths":{"quay.io":{"auth":"cm9ib3Q6c3VwZXItaGlkZGVu"}}}"#,
            "cm9ib3Q6c3VwZXItaGlkZGVu",
        ),
        canary("URLCRED", "HTTPS_PROXY=http://deploy:zUp3rHidd3n@proxy.corp:3128", "zUp3rHidd3n"),
        canary("PASSWORD", "db_password=Tr0ub4dor-and-3", "Tr0ub4dor-and-3"),
        canary(
            "PWHASH",
            "core:$6$saltsalt$Yz8KqW3nTb5Vc7Xm9Lp1RdFgHjSa0EuI:19000",
            "$6$saltsalt$Yz8KqW3nTb5Vc7Xm9Lp1RdFgHjSa0EuI",
        ),
        canary("ENVVAR", "Environment=ARTIFACT_TOKEN_RW=zebra-Crossing-9-lane", "zebra-Crossing-9-lane"),
        canary(
            "ENCKEY",
            "        secret: dGhpcnR5LXR3by1ieXRlcy1vZi1rZXktbWF0ZXJpYWw=",
            "dGhpcnR5LXR3by1ieXRlcy1vZi1rZXktbWF0ZXJpYWw=",
        ),
        canary(
            "VENDOR",
            "remote ghp_16C7e42F292c6912E7710c838347Ae178B4a ok",
            "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
        ),
    ]
}

fn encodings(text: &str) -> Vec<(&'static str, String)> {
    let percent_all = |text: &str| text.bytes().map(|byte| format!("%{byte:02X}")).collect::<String>();
    let percent = |text: &str| {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
        text.bytes()
            .map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") })
            .collect::<String>()
    };
    let json = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let unicode = |text: &str| text.bytes().map(|byte| format!("\\u{byte:04x}")).collect::<String>();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    gzip.write_all(format!("#!/bin/sh\n{text}\n").as_bytes()).unwrap();
    let gzip = STANDARD.encode(gzip.finish().unwrap());
    let wrapped: Vec<String> = STANDARD
        .encode(format!("some text before it, which shifts it\n{text}\nand some after"))
        .as_bytes()
        .chunks(76)
        .map(|line| String::from_utf8(line.to_vec()).unwrap())
        .collect();
    vec![
        ("raw", text.to_owned()),
        ("base64", STANDARD.encode(text)),
        ("base64, shifted by one", STANDARD.encode(format!("x{text}\ny"))),
        ("base64, shifted by two", STANDARD.encode(format!("xx{text}"))),
        ("base64 in lines", wrapped.join("\n")),
        ("base64url", URL_SAFE.encode(text)),
        ("base64url without padding", URL_SAFE_NO_PAD.encode(text)),
        ("base64 twice", STANDARD.encode(STANDARD.encode(text))),
        ("percent", percent(text)),
        ("percent, every byte", percent_all(text)),
        ("percent of base64", percent(&STANDARD.encode(text))),
        ("hexadecimal", text.bytes().map(|byte| format!("{byte:02x}")).collect()),
        ("HEXADECIMAL", text.bytes().map(|byte| format!("{byte:02X}")).collect()),
        ("json", format!("{{\"line\":\"{}\"}}", json(text))),
        ("json in json", format!("{{\"line\":\"{}\"}}", json(&format!("{{\"line\":\"{}\"}}", json(text))))),
        ("json, every byte", format!("{{\"line\":\"{}\"}}", unicode(text))),
        (
            "gzip in an Ignition data URL",
            format!(r#"{{"path":"/x","contents":{{"compression":"gzip","source":"data:;base64,{gzip}"}}}}"#),
        ),
    ]
}

fn carriers(text: &str) -> Vec<(&'static str, String)> {
    vec![
        ("alone", text.to_owned()),
        ("a line", format!("first line\n{text}\nlast line\n")),
        ("after a word", format!("first line\nvalue={text}\nlast line\n")),
        ("quoted", format!("first\nmsg=\"{text}\" level=info\nlast\n")),
    ]
}

/// Returns the forms from which the secret could be recovered.
fn traces(secret: &str) -> Vec<String> {
    secret
        .split('\n')
        .flat_map(|line| {
            let hexadecimal: String = line.bytes().map(|byte| format!("{byte:02x}")).collect();
            [line.to_owned(), hexadecimal.to_ascii_uppercase(), hexadecimal]
        })
        .collect()
}

/// Returns whether the text contains eight consecutive bytes of the secret in any form, also after decoding.
fn leaks(out: &[u8], secret: &str) -> Option<String> {
    traces(secret).iter().find_map(|trace| {
        let windows = trace.as_bytes().windows(8);
        windows
            .into_iter()
            .find(|window| memchr::memmem::find(out, window).is_some())
            .map(|window| String::from_utf8_lossy(window).into_owned())
    })
}

/// Decodes Base64 and percent encoding that is left in the output.
fn unfolded(out: &[u8]) -> Vec<u8> {
    let mut all = out.to_vec();
    let joined: Vec<u8> = out.iter().copied().filter(|byte| *byte != b'\n').collect();
    for source in [out, &joined] {
        for word in source.split(|byte| !(byte.is_ascii_alphanumeric() || b"+/-_".contains(byte))) {
            let word: Vec<u8> = word
                .iter()
                .map(|byte| match byte {
                    b'-' => b'+',
                    b'_' => b'/',
                    other => *other,
                })
                .collect();
            for skip in 0..4.min(word.len()) {
                let len = (word.len() - skip) / 4 * 4;
                if let Ok(decoded) = STANDARD.decode(&word[skip..skip + len]) {
                    all.push(b'\n');
                    all.extend(decoded);
                }
            }
        }
    }
    all
}

fn check(redactor: &Redactor, what: &str) {
    let mut failures = Vec::new();
    for canary in canaries() {
        for (encoding, encoded) in encodings(&canary.text) {
            for (carrier, carried) in carriers(&encoded) {
                for length in [Length::Free, Length::Same] {
                    let (out, counts) =
                        redactor.redact(carried.as_bytes(), Options { length, ..Options::default() });
                    let kind = canary.name;
                    if let Some(window) = leaks(&unfolded(&out), &canary.secret) {
                        failures.push(format!(
                            "{what}: {kind} as {encoding}, {carrier}, {length:?}: `{window}` in {}",
                            String::from_utf8_lossy(&out)
                        ));
                    }
                    if length == Length::Same && out.len() != carried.len() {
                        failures.push(format!("{what}: {kind} as {encoding}, {carrier}: length changed"));
                    }
                    if counts.redacted.is_empty() && counts.withheld == 0 {
                        failures.push(format!("{what}: {kind} as {encoding}, {carrier}: nothing counted"));
                    }
                }
            }
        }
    }
    assert!(failures.is_empty(), "{} leaks:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn no_canary_survives_by_pattern_alone() {
    check(&Redactor::builder().build().unwrap(), "unknown");
}

#[test]
fn no_canary_survives_when_its_value_is_known() {
    let mut builder = Redactor::builder();
    for canary in canaries() {
        builder = builder.known_secret(Kind::new("KNOWN").unwrap(), &Secret::new(canary.secret));
    }
    check(&builder.build().unwrap(), "known");
}

/// A known value needs no pattern: it is found without context.
#[test]
fn known_values_are_found_without_any_hint() {
    let secret = "plainwords of a passphrase, Nr. 7";
    let redactor =
        Redactor::builder().known_secret(Kind::PASSWORD, &Secret::new(secret.to_owned())).build().unwrap();
    for (encoding, encoded) in encodings(secret) {
        for (carrier, carried) in carriers(&encoded) {
            let (out, _) = redactor.redact(carried.as_bytes(), Options::default());
            assert_eq!(
                leaks(&unfolded(&out), secret),
                None,
                "{encoding}, {carrier}: {}",
                String::from_utf8_lossy(&out)
            );
        }
    }
}

fn export_entry(unit: &str, message: &str) -> Vec<u8> {
    let mut entry =
        format!("__CURSOR=s=1;i=2\n__REALTIME_TIMESTAMP=1700000000000000\n_SYSTEMD_UNIT={unit}\n")
            .into_bytes();
    if message.contains('\n') {
        entry.extend(b"MESSAGE\n");
        entry.extend((message.len() as u64).to_le_bytes());
        entry.extend(message.as_bytes());
        entry.extend(b"\nPRIORITY=6\n\n");
    } else {
        entry.extend(format!("MESSAGE={message}\nPRIORITY=6\n\n").as_bytes());
    }
    entry
}

fn check_split(redactor: &Redactor) {
    let mut failures = Vec::new();
    let options = Options { format: Format::JournalExport, ..Options::default() };
    for canary in canaries() {
        for (encoding, encoded) in encodings(&canary.text) {
            // Wrapped text is already split at its own line ends.
            if encoding == "base64 in lines" {
                continue;
            }
            let places: Vec<usize> =
                (0..encoded.len()).filter(|place| encoded.is_char_boundary(*place)).collect();
            for place in places.into_iter().step_by(encoded.len().div_ceil(40)) {
                let (first, second) = encoded.split_at(place);
                let mut journal = export_entry("kubelet.service", first);
                journal.extend(export_entry("other.service", "an entry of another unit"));
                journal.extend(export_entry("kubelet.service", second));
                let (out, _) = redactor.redact(&journal, options);
                let messages: Vec<u8> = journal_messages(&out, "kubelet.service").concat();
                if let Some(window) = leaks(&unfolded(&messages), &canary.secret) {
                    failures.push(format!(
                        "{} as {encoding} split at {place}: `{window}` in {}",
                        canary.name,
                        String::from_utf8_lossy(&out)
                    ));
                }
                if out.len() != journal.len() {
                    failures.push(format!("{} as {encoding} split at {place}: length changed", canary.name));
                }
            }
        }
    }
    failures.truncate(20);
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Parses an export stream; panics if the framing is broken.
fn journal_messages(mut export: &[u8], unit: &str) -> Vec<Vec<u8>> {
    let mut messages = Vec::new();
    let (mut message, mut is_unit) = (Vec::new(), false);
    while !export.is_empty() {
        let end = export.iter().position(|byte| *byte == b'\n').expect("a line feed");
        let line = &export[..end];
        export = &export[end + 1..];
        if line.is_empty() {
            if is_unit {
                messages.push(std::mem::take(&mut message));
            }
            is_unit = false;
        } else if let Some(equals) = line.iter().position(|byte| *byte == b'=') {
            match &line[..equals] {
                b"MESSAGE" => message = line[equals + 1..].to_vec(),
                b"_SYSTEMD_UNIT" => is_unit = &line[equals + 1..] == unit.as_bytes(),
                _ => {}
            }
        } else {
            let len = usize::try_from(u64::from_le_bytes(export[..8].try_into().unwrap())).unwrap();
            if line == b"MESSAGE" {
                message = export[8..8 + len].to_vec();
            }
            assert_eq!(export[8 + len], b'\n');
            export = &export[8 + len + 1..];
        }
    }
    messages
}

#[test]
fn no_known_canary_survives_a_split_over_two_journal_entries() {
    let mut builder = Redactor::builder();
    for canary in canaries() {
        builder = builder.known_secret(Kind::new("KNOWN").unwrap(), &Secret::new(canary.secret));
    }
    check_split(&builder.build().unwrap());
}

#[test]
fn no_unknown_canary_survives_a_split_over_two_journal_entries() {
    check_split(&Redactor::builder().build().unwrap());
}

/// Approximate batch size in which entries are searched.
const BATCH: usize = 64 << 10;

/// Logs with one entry per line of `text`, and how their texts are extracted.
fn logs(text: &str) -> [(Format, Vec<u8>); 2] {
    let cri = |line: &str| format!("2024-01-02T03:04:05.000000006Z stderr F {line}\n").into_bytes();
    let journal = |line: &str| export_entry("kubelet.service", line);
    [
        (Format::JournalExport, text.lines().flat_map(journal).collect()),
        (Format::Cri, text.lines().flat_map(cri).collect()),
    ]
}

fn texts(format: Format, log: &[u8]) -> Vec<u8> {
    match format {
        Format::JournalExport => journal_messages(log, "kubelet.service").join(&b'\n'),
        _ => log
            .split(|byte| *byte == b'\n')
            .map(|line| line.get(40..).unwrap_or_default())
            .collect::<Vec<_>>()
            .join(&b'\n'),
    }
}

fn private_key() -> Canary {
    canaries().into_iter().find(|canary| canary.name == "PRIVKEY").unwrap()
}

/// Base64 that spans many entries may start in one batch and end in the next.
#[test]
fn no_canary_survives_in_base64_over_many_entries_wherever_it_begins() {
    let redactor = Redactor::builder().build().unwrap();
    let canary = private_key();
    let (_, wrapped) =
        encodings(&canary.text).into_iter().find(|(name, _)| *name == "base64 in lines").unwrap();
    let filler = "an innocent line. ".repeat(20);
    let mut leaking = Vec::new();
    for before in (BATCH - 4096..BATCH + 512).step_by(61) {
        let innocent = format!("{filler}\n").repeat(before / filler.len());
        let text = format!("{innocent}{}\n{wrapped}\nand the last\n", &filler[..before % filler.len()]);
        for (format, log) in logs(&text) {
            let (out, _) = redactor.redact(&log, Options { format, ..Options::default() });
            let texts = texts(format, &out);
            assert!(texts.ends_with(b"and the last") || texts.ends_with(b"and the last\n"));
            if leaks(&unfolded(&texts[before..]), &canary.secret).is_some() {
                leaking.push((format, before));
            }
        }
    }
    assert!(leaking.is_empty(), "with so many bytes before it: {leaking:?}");
}

#[test]
fn base64_over_more_entries_than_can_be_held_is_withheld() {
    let redactor = Redactor::builder().build().unwrap();
    let canary = private_key();
    let long = "nothing to be seen in here, ".repeat(12 * BATCH / 28);
    let wrapped: Vec<String> = STANDARD
        .encode(format!("{long}{}", canary.text))
        .as_bytes()
        .chunks(76)
        .map(|line| String::from_utf8(line.to_vec()).unwrap())
        .collect();
    for (format, log) in logs(&format!("{}\nand the last\n", wrapped.join("\n"))) {
        let (out, counts) = redactor.redact(&log, Options { format, ..Options::default() });
        let texts = texts(format, &out);
        assert!(texts.ends_with(b"and the last") || texts.ends_with(b"and the last\n"));
        assert_eq!(leaks(&unfolded(&texts), &canary.secret), None, "{format:?}");
        assert!(counts.withheld > 0, "{format:?}");
    }
}
