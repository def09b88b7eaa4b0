//! Tests with keys and signatures made by gpg; gpg itself accepts more than this module.

use std::process::{Command, Stdio};

use landfall_testkit::{Need, have};
use tempfile::TempDir;

use super::*;
use crate::prepare::request::Trust;

const CONTENT: &[u8] = b"{\"kind\":\"torcx-package-list-v0\"}\n";

/// A private keyring of gpg in a directory.
struct Gpg(TempDir);

impl Gpg {
    fn new() -> Self {
        Self(tempfile::Builder::new().prefix("gpg-").tempdir().unwrap())
    }

    fn run(&self, arguments: &[&str], input: &[u8]) -> Vec<u8> {
        use std::io::Write as _;
        let mut child = Command::new("gpg")
            .args([
                "--batch",
                "--yes",
                "--quiet",
                "--no-tty",
                "--pinentry-mode",
                "loopback",
                "--passphrase",
                "",
            ])
            .args(arguments)
            .env("GNUPGHOME", self.0.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(input).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "gpg {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    }

    /// Creates a key that may only certify, with a subkey that signs. Returns both fingerprints.
    fn with_subkey(&self, user: &str, algorithm: &str, made: &str, lives: &str) -> (String, String) {
        // The `!` freezes the clock: on a busy machine the subkey would otherwise be older than its key.
        let at = format!("--faked-system-time={made}!");
        self.run(&[&at, "--quick-generate-key", user, algorithm, "cert", "never"], b"");
        let primary = self.fingerprints(user)[0].clone();
        self.run(&[&at, "--quick-add-key", &primary, algorithm, "sign", lives], b"");
        (primary, self.fingerprints(user)[1].clone())
    }

    /// Runs `gpg --edit-key` with these commands.
    fn edit(&self, user: &str, commands: &str) {
        use std::io::Write as _;
        let mut child = Command::new("gpg")
            .args(["--yes", "--quiet", "--no-tty", "--pinentry-mode", "loopback", "--passphrase", ""])
            .args(["--command-fd", "0", "--edit-key", user])
            .env("GNUPGHOME", self.0.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(commands.as_bytes()).unwrap();
        assert!(child.wait().unwrap().success(), "gpg --edit-key {user}: {commands:?}");
    }

    fn fingerprints(&self, user: &str) -> Vec<String> {
        let listed = String::from_utf8(self.run(&["--with-colons", "--list-keys", user], b"")).unwrap();
        let lines = listed.lines().filter_map(|line| line.strip_prefix("fpr:"));
        lines.map(|line| line.trim_matches(':').to_ascii_lowercase()).collect()
    }

    fn sign(&self, users: &[&str], options: &[&str]) -> Vec<u8> {
        let mut arguments = vec!["--armor", "--detach-sign"];
        arguments.extend(users.iter().flat_map(|user| ["--local-user", user]));
        let arguments: Vec<&str> = options.iter().copied().chain(arguments).collect();
        self.run(&arguments, CONTENT)
    }

    fn keyring(&self, armored: bool) -> Vec<u8> {
        let arguments: &[&str] = if armored { &["--armor", "--export"] } else { &["--export"] };
        self.run(arguments, b"")
    }
}

impl Drop for Gpg {
    fn drop(&mut self) {
        let home = self.0.path();
        let _ = Command::new("gpgconf").args(["--kill", "all"]).env("GNUPGHOME", home).output();
    }
}

fn now() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs()
}

fn policy(trust: &Trust) -> Policy {
    Policy::new(trust, now()).unwrap()
}

#[track_caller]
fn objection(keyring: &[u8], trust: &Trust, content: &[u8], signature: &[u8]) -> String {
    let verifier = OpenPgp::new(keyring, policy(trust)).unwrap();
    verifier.verify(content, signature).unwrap_err().to_string()
}

#[test]
fn a_good_signature_counts_and_anything_else_does_not() {
    if !have(&[Need::Program("gpg")]) {
        return;
    }
    let gpg = Gpg::new();
    let (rsa, _) = gpg.with_subkey("release@example.com", "rsa2048", "20260101T000000", "never");
    let (curve, _) = gpg.with_subkey("second@example.com", "ed25519", "20260101T000000", "never");
    let trust = Trust::default();
    let armored = gpg.keyring(true);
    let verifier = OpenPgp::new(&armored, policy(&trust)).unwrap();

    let signature = gpg.sign(&["release@example.com"], &[]);
    assert_eq!(verifier.verify(CONTENT, &signature).unwrap(), std::slice::from_ref(&rsa));
    let by_curve = gpg.sign(&["second@example.com"], &[]);
    assert_eq!(verifier.verify(CONTENT, &by_curve).unwrap(), std::slice::from_ref(&curve));
    // A binary keyring gives the same result.
    let binary = OpenPgp::new(&gpg.keyring(false), policy(&trust)).unwrap();
    assert_eq!(binary.verify(CONTENT, &signature).unwrap(), std::slice::from_ref(&rsa));

    let told = objection(&armored, &trust, b"something else", &signature);
    assert!(told.contains("no key of the keyring has made it"), "{told}");
    let weak = gpg.sign(&["release@example.com"], &["--digest-algo", "SHA1"]);
    let told = objection(&armored, &trust, CONTENT, &weak);
    assert!(told.contains("SHA1, is too weak"), "{told}");
    let text = gpg.sign(&["release@example.com"], &["--textmode"]);
    let told = objection(&armored, &trust, CONTENT, &text);
    assert!(told.contains("over the bytes of a file"), "{told}");
    let future = gpg.sign(&["release@example.com"], &["--faked-system-time=20990101T000000"]);
    let told = objection(&armored, &trust, CONTENT, &future);
    assert!(told.contains("in the future"), "{told}");
    let short = gpg.sign(
        &["release@example.com"],
        &["--faked-system-time=20260201T000000", "--default-sig-expire", "1d"],
    );
    let told = objection(&armored, &trust, CONTENT, &short);
    assert!(told.contains("it has expired"), "{told}");

    // A key that is not in the keyring.
    let other = Gpg::new();
    other.with_subkey("other@example.com", "ed25519", "20260101T000000", "never");
    let told = objection(&armored, &trust, CONTENT, &other.sign(&["other@example.com"], &[]));
    assert!(told.contains("no key of the keyring has made it"), "{told}");

    // Only the listed keys count, and two signatures are required if the threshold is two.
    let listed = Trust { fingerprints: vec![curve.to_uppercase()], ..Trust::default() };
    let told = objection(&armored, &listed, CONTENT, &signature);
    assert!(told.contains("not among those that count"), "{told}");
    OpenPgp::new(&armored, policy(&listed)).unwrap().verify(CONTENT, &by_curve).unwrap();
    let both = Trust { threshold: 2, ..Trust::default() };
    let told = objection(&armored, &both, CONTENT, &signature);
    assert!(told.starts_with("1 of 2 required signatures"), "{told}");
    // The same key twice is one key.
    let twice = [signature.clone(), signature.clone()].concat();
    let told = objection(&armored, &both, CONTENT, &twice);
    assert!(told.starts_with("1 of 2 required signatures"), "{told}");
    let verifier = OpenPgp::new(&armored, policy(&both)).unwrap();
    let mut expected = [rsa, curve];
    expected.sort();
    let together = gpg.sign(&["release@example.com", "second@example.com"], &[]);
    assert_eq!(verifier.verify(CONTENT, &together).unwrap(), expected);
    assert_eq!(verifier.verify(CONTENT, &[signature, by_curve].concat()).unwrap(), expected);
}

/// The seventh defect of the original: any key of the keyring counted, even expired or revoked ones.
#[test]
fn defect_07_keys_that_expired_or_were_revoked_are_told_apart() {
    if !have(&[Need::Program("gpg")]) {
        return;
    }
    let trust = Trust::default();
    let gpg = Gpg::new();
    let (old, _) = gpg.with_subkey("old@example.com", "rsa2048", "20160101T000000", "1y");
    // Expired now, but valid when it signed, as is normal for keys of old releases.
    let then = gpg.sign(&["old@example.com"], &["--faked-system-time=20160601T000000"]);
    let keyring = gpg.keyring(true);
    let verifier = OpenPgp::new(&keyring, policy(&trust)).unwrap();
    assert_eq!(verifier.verify(CONTENT, &then).unwrap(), std::slice::from_ref(&old));
    // The same signature, and a keyring in which its subkey expired before.
    let short = Gpg::new();
    short.run(&["--import"], &gpg.run(&["--export-secret-keys"], b""));
    let subkey = short.fingerprints("old@example.com")[1].clone();
    short.run(
        &["--faked-system-time=20160201T000000", "--quick-set-expire", &old, "20160301T000000", &subkey],
        b"",
    );
    let told = objection(&short.keyring(true), &trust, CONTENT, &then);
    assert!(told.contains("had expired when it signed"), "{told}");

    // Revoked keys invalidate all their signatures, also earlier ones; gpg itself reports "Good signature" for this.
    let revoked = Gpg::new();
    let (primary, _) = revoked.with_subkey("gone@example.com", "ed25519", "20260101T000000", "never");
    let before = revoked.sign(&["gone@example.com"], &[]);
    let good = revoked.keyring(true);
    assert!(OpenPgp::new(&good, policy(&trust)).unwrap().verify(CONTENT, &before).is_ok());
    let path = revoked.0.path().join("openpgp-revocs.d").join(format!("{}.rev", primary.to_uppercase()));
    let certificate = std::fs::read_to_string(path).unwrap().replace(":-----BEGIN", "-----BEGIN");
    revoked.run(&["--import"], certificate.as_bytes());
    let told = objection(&revoked.keyring(true), &trust, CONTENT, &before);
    assert!(told.contains("it was revoked"), "{told}");
}

#[test]
fn a_key_that_may_not_sign_does_not_sign() {
    if !have(&[Need::Program("gpg")]) {
        return;
    }
    let gpg = Gpg::new();
    gpg.run(&["--quick-generate-key", "plain@example.com", "rsa1024", "sign", "never"], b"");
    let signature = gpg.sign(&["plain@example.com"], &[]);
    let told = objection(&gpg.keyring(true), &Trust::default(), CONTENT, &signature);
    assert!(told.contains("shorter than 2048 bits"), "{told}");

    // A subkey that signed while it was allowed to, in a keyring that does not allow it any more.
    let gpg = Gpg::new();
    gpg.with_subkey("once@example.com", "rsa2048", "20260101T000000", "never");
    let signature = gpg.sign(&["once@example.com"], &[]);
    let trust = Trust::default();
    assert!(OpenPgp::new(&gpg.keyring(true), policy(&trust)).unwrap().verify(CONTENT, &signature).is_ok());
    gpg.edit("once@example.com", "key 1\nchange-usage\ns\ne\nq\nsave\n");
    let told = objection(&gpg.keyring(true), &trust, CONTENT, &signature);
    assert!(told.contains("its subkey is not meant for signing"), "{told}");
}

#[test]
fn a_revoked_subkey_signs_nothing_and_its_sister_does() {
    if !have(&[Need::Program("gpg")]) {
        return;
    }
    let trust = Trust::default();
    let gpg = Gpg::new();
    let (primary, first) = gpg.with_subkey("two@example.com", "rsa2048", "20260101T000000", "never");
    gpg.run(
        &["--faked-system-time=20260102T000000", "--quick-add-key", &primary, "rsa2048", "sign", "never"],
        b"",
    );
    let second = gpg.fingerprints("two@example.com")[2].clone();
    // With `!` gpg uses exactly this key.
    let (by_first, by_second) =
        (gpg.sign(&[&format!("{first}!")], &[]), gpg.sign(&[&format!("{second}!")], &[]));
    let verifier = OpenPgp::new(&gpg.keyring(true), policy(&trust)).unwrap();
    for signature in [&by_first, &by_second] {
        assert_eq!(verifier.verify(CONTENT, signature).unwrap(), std::slice::from_ref(&primary));
    }
    gpg.edit("two@example.com", "key 1\nrevkey\ny\n0\n\ny\nsave\n");
    let keyring = gpg.keyring(true);
    let told = objection(&keyring, &trust, CONTENT, &by_first);
    assert!(told.contains("its subkey was revoked"), "{told}");
    let verifier = OpenPgp::new(&keyring, policy(&trust)).unwrap();
    assert_eq!(verifier.verify(CONTENT, &by_second).unwrap(), std::slice::from_ref(&primary));
    // The revoked signature does not count towards a threshold of two either.
    let both = Trust { threshold: 2, ..Trust::default() };
    let told = objection(&keyring, &both, CONTENT, &[by_first, by_second].concat());
    assert!(told.starts_with("1 of 2 required signatures"), "{told}");
}

#[test]
fn a_key_that_had_expired_or_is_held_together_by_sha1_does_not_count() {
    if !have(&[Need::Program("gpg")]) {
        return;
    }
    let trust = Trust::default();
    let gpg = Gpg::new();
    let at = |time: &str| format!("--faked-system-time={time}");
    gpg.run(
        &[&at("20160101T000000"), "--quick-generate-key", "old@example.com", "rsa2048", "sign", "1y"],
        b"",
    );
    let then = gpg.sign(&["old@example.com"], &[&at("20160601T000000")]);
    let primary = gpg.fingerprints("old@example.com")[0].clone();
    assert!(OpenPgp::new(&gpg.keyring(true), policy(&trust)).unwrap().verify(CONTENT, &then).is_ok());
    // The owner later changes the expiry to an earlier date.
    gpg.run(&[&at("20160701T000000"), "--quick-set-expire", &primary, "20160301T000000"], b"");
    let told = objection(&gpg.keyring(true), &trust, CONTENT, &then);
    assert!(told.contains("had expired when it signed"), "{told}");

    let gpg = Gpg::new();
    gpg.run(
        &[
            "--cert-digest-algo",
            "SHA1",
            "--quick-generate-key",
            "weak@example.com",
            "rsa2048",
            "sign",
            "never",
        ],
        b"",
    );
    let signature = gpg.sign(&["weak@example.com"], &["--digest-algo", "SHA512"]);
    let told = objection(&gpg.keyring(true), &trust, CONTENT, &signature);
    assert!(told.contains("nothing it signed itself says what it is for"), "{told}");
}

/// The sixth defect of the original, with real signatures: the signature is valid, but the list is for another
/// system, another board, or last year.
#[test]
fn defect_06_a_replayed_index_is_refused_whoever_signed_it() {
    use crate::prepare::manifest::{Manifest, NotForThis, Unbound};

    if !have(&[Need::Program("gpg")]) {
        return;
    }
    let gpg = Gpg::new();
    gpg.with_subkey("release@example.com", "ed25519", "20260101T000000", "never");
    let verifier = OpenPgp::new(&gpg.keyring(true), policy(&Trust::default())).unwrap();
    let index = |board: &str, system: &str, issued: &str, expires: &str| {
        format!(
            r#"{{"kind":"landfall-package-index-v1","value":{{"board":"{board}","osVersion":"{system}","issued":"{issued}","expires":"{expires}","packages":[]}}}}"#
        )
    };
    let (day, later) = ("2026-02-01T00:00:00Z", "2026-03-01T00:00:00Z");
    // 2026-02-15
    let now = 1_771_113_600;
    let judge = |text: &str| {
        let signature = gpg.run(&["--armor", "--detach-sign"], text.as_bytes());
        verifier.verify(text.as_bytes(), &signature).unwrap();
        // The signature covers exactly this content.
        let other = text.replace("2000.0.0", "2000.0.1");
        assert_eq!(other == text, verifier.verify(other.as_bytes(), &signature).is_ok());
        let manifest = Manifest::parse(text.as_bytes()).unwrap();
        manifest.check_binding("amd64-usr", &"2000.0.0".parse().unwrap(), now, Unbound::Refused)
    };
    assert_eq!(judge(&index("amd64-usr", "2000.0.0", day, later)), Ok(()));
    let replayed = judge(&index("amd64-usr", "1999.0.0", day, later));
    assert!(matches!(replayed, Err(NotForThis::System { .. })), "{replayed:?}");
    let replayed = judge(&index("arm64-usr", "2000.0.0", day, later));
    assert!(matches!(replayed, Err(NotForThis::Board { .. })), "{replayed:?}");
    assert_eq!(judge(&index("amd64-usr", "2000.0.0", "2025-02-01T00:00:00Z", day)), Err(NotForThis::Expired));
    let old = r#"{"kind":"torcx-package-list-v0","value":{"packages":[]}}"#;
    assert_eq!(judge(old), Err(NotForThis::Unbound));
}

#[test]
fn rubbish_is_refused_without_a_panic() {
    let trust = Trust::default();
    for keyring in [
        &b""[..],
        b"not a key",
        &[0x99, 0x01, 0xff, 0x00],
        "-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nAAAA\n".as_bytes(),
    ] {
        assert!(OpenPgp::new(keyring, policy(&trust)).is_err(), "{keyring:?}");
    }
    for text in ["", "18AD5014", "not hex not hex not hex not hex not hex!"] {
        let trust = Trust { fingerprints: vec![text.to_owned()], ..Trust::default() };
        assert!(Policy::new(&trust, 0).is_err(), "{text}");
    }
    let spaced = "18AD 5014 C99E F7E3 BA5F  6CE9 50BD D3E0 FC8A 365E".to_owned();
    assert!(Policy::new(&Trust { fingerprints: vec![spaced], ..Trust::default() }, 0).is_ok());
}
