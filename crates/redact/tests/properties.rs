//! Properties of all inputs.

#![expect(
    clippy::unwrap_used,
    clippy::format_collect,
    reason = "a test fails by panicking, and is not pressed for time"
)]

use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use landfall_model::Secret;
use landfall_redact::{Format, Kind, Length, Names, Options, Redactor};
use proptest::prelude::*;

static REDACTOR: LazyLock<Redactor> = LazyLock::new(|| {
    let password = Secret::new("known-Passw0rd-of-the-node".to_owned());
    Redactor::builder().known_secret(Kind::PASSWORD, &password).host_name("node-1").build().unwrap()
});

/// Few cases by default for fast tests; `PROPTEST_CASES` sets more.
fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(96)
}

/// Generates pieces that drive the state machines: secrets, starts without ends, ends without starts, frames,
/// noise.
fn piece() -> impl Strategy<Value = Vec<u8>> {
    let fixed = prop::sample::select(vec![
        "kubeadm join --token 8df4zm.5jyv2nrxb18y84jq\n",
        "known-Passw0rd-of-the-node",
        "a25vd24tUGFzc3cwcmQtb2YtdGhlLW5vZGU=",
        "password: |\n  deep\n  deeper\nnext: 1\n",
        "-----BEGIN RSA PRIVATE KEY-----\n",
        "MIIEowIBAAKCAQEAx7q9KfT3mZ0dLr5VYwq8sJtUe2nGhBvCkXpOiAuDfEjSlMzW\n",
        "-----END RSA PRIVATE KEY-----\n",
        "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n",
        "Full config:\n{\n  \"a\": {\n",
        "}\n",
        "#cloud-config\nwrite_files:\n- path: /x\n",
        "cat <<EOF > /root/.kube/config\n",
        "EOF\n",
        "kind: Secret\ndata:\n  a: Yg==\n",
        "%70%61ssword%3Dhunter22",
        "\\u0070assword=hunter22 \\x41 \\/",
        "H4sIAAAAAAAAA",
        "2026-01-02T03:04:05.678901234Z stdout P ",
        "2026-01-02T03:04:05.678901234Z stdout F ",
        "MESSAGE=",
        "MESSAGE\n\u{5}\0\0\0\0\0\0\0",
        "_SYSTEMD_UNIT=kubelet.service\n",
        "node-1 192.168.7.9 00:1a:2b:3c:4d:5e fd00::17 12:34:56",
        "\n",
        "\n\n",
        " ",
    ])
    .prop_map(|piece| piece.as_bytes().to_vec());
    let noise = prop::collection::vec(any::<u8>(), 0..40);
    let long = (0_usize..3).prop_map(|size| vec![b'A'; [100, 70_000, 140_000][size]]);
    prop_oneof![12 => fixed, 4 => noise, 1 => long]
}

fn text() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(piece(), 0..24).prop_map(|pieces| pieces.concat())
}

fn options() -> impl Strategy<Value = Options> {
    let formats = prop::sample::select(vec![Format::Lines, Format::Cri, Format::JournalExport]);
    let lengths = prop::sample::select(vec![Length::Free, Length::Same]);
    let names = prop::sample::select(vec![Names::Keep, Names::Pseudonyms]);
    (formats, lengths, names).prop_map(|(format, length, names)| Options { format, length, names })
}

fn encoded(secret: &str, encoding: u8) -> String {
    match encoding {
        0 => secret.to_owned(),
        1 => STANDARD.encode(secret),
        2 => STANDARD.encode(format!("x{secret}yz")),
        3 => STANDARD.encode(format!("xy{secret}z")),
        4 => URL_SAFE_NO_PAD.encode(secret),
        5 => secret.bytes().map(|byte| format!("{byte:02x}")).collect(),
        6 => secret.bytes().map(|byte| format!("{byte:02X}")).collect(),
        7 => secret.bytes().map(|byte| format!("%{byte:02x}")).collect(),
        _ => secret.bytes().map(|byte| format!("\\u{byte:04X}")).collect(),
    }
}

fn has_window(text: &[u8], of: &[u8]) -> bool {
    of.windows(8).any(|window| memchr::memmem::find(text, window).is_some())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]

    #[test]
    fn the_output_does_not_depend_on_the_pieces(
        text in text(),
        options in options(),
        sizes in prop::collection::vec(1_usize..5000, 1..8),
    ) {
        let redactor = &*REDACTOR;
        let (whole, counts) = redactor.redact(&text, options);
        let mut stream = redactor.stream(options);
        let mut out = Vec::new();
        let (mut rest, mut sizes) = (&text[..], sizes.iter().cycle());
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(*sizes.next().unwrap()));
            stream.push(now, &mut out);
            rest = later;
        }
        prop_assert_eq!(stream.finish(&mut out), counts);
        prop_assert_eq!(String::from_utf8_lossy(&out), String::from_utf8_lossy(&whole));
    }

    #[test]
    fn the_length_stays_when_it_must(text in text(), options in options()) {
        let options = Options { length: Length::Same, ..options };
        let (out, counts) = REDACTOR.redact(&text, options);
        prop_assert_eq!(out.len(), text.len());
        prop_assert_eq!((counts.bytes_in, counts.bytes_out), (text.len() as u64, text.len() as u64));
    }

    #[test]
    fn no_eight_bytes_of_a_known_secret_survive(
        secret in "[A-Za-z0-9][A-Za-z0-9!#$%&()*+,./:;<=>?@_~ -]{10,58}[A-Za-z0-9]",
        before in "[ -~]{0,80}",
        after in "[ -~]{0,80}",
        encoding in 0_u8..9,
        options in options(),
    ) {
        let value = secret.as_str();
        let redactor = Redactor::builder().known_secret(Kind::PASSWORD, &Secret::new(value.to_owned())).build().unwrap();
        let carried = encoded(value, encoding);
        // Innocent surrounding text may share a part with the secret.
        prop_assume!(!has_window(before.as_bytes(), carried.as_bytes()) && !has_window(after.as_bytes(), carried.as_bytes()));
        let text = format!("{before} {carried} {after}\n");
        let (out, counts) = redactor.redact(text.as_bytes(), options);
        let shown = String::from_utf8_lossy(&out).into_owned();
        // The edge characters of a shifted encoding also depend on the neighboring text.
        let inner = if matches!(encoding, 2 | 3) { &carried.as_bytes()[4..carried.len() - 4] } else { carried.as_bytes() };
        prop_assert!(!has_window(&out, inner), "{text:?} -> {shown:?}");
        prop_assert!(!has_window(&out, value.as_bytes()), "{text:?} -> {shown:?}");
        prop_assert!(!counts.redacted.is_empty() || counts.withheld > 0);
    }

    #[test]
    fn a_known_secret_split_over_two_entries_is_gone(
        secret in "[A-Za-z0-9+/=._-]{12,80}",
        place in any::<prop::sample::Index>(),
        encoding in 0_u8..7,
    ) {
        let redactor = Redactor::builder().known_secret(Kind::PASSWORD, &Secret::new(secret.clone())).build().unwrap();
        let carried = encoded(&secret, encoding);
        let (first, second) = carried.split_at(place.index(carried.len()));
        let entry = |text: &str| format!("_SYSTEMD_UNIT=a.service\nMESSAGE={text}\n\n");
        let journal = format!("{}{}", entry(&format!("begin {first}")), entry(&format!("{second} end")));
        let options = Options { format: Format::JournalExport, ..Options::default() };
        let (out, _) = redactor.redact(journal.as_bytes(), options);
        let inner = if matches!(encoding, 2 | 3) { &carried.as_bytes()[4..carried.len() - 4] } else { carried.as_bytes() };
        prop_assert!(!has_window(&out, inner), "{}", String::from_utf8_lossy(&out));
        prop_assert_eq!(out.len(), journal.len());
    }
}
