//! Encrypted bundles, decrypted with the real `age`.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output};

use landfall_evidence::bundle::{Recipient, Sealed};
use landfall_testkit::{Need, have};

fn decrypt(folder: &Path) -> Output {
    Command::new("age")
        .args(["--decrypt", "-i", "key.txt", "-o", "plain", "sealed"])
        .current_dir(folder)
        .output()
        .unwrap()
}

fn recipient(folder: &Path) -> Recipient {
    let made = Command::new("age-keygen").args(["-o", "key.txt"]).current_dir(folder).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    let key = fs::read_to_string(folder.join("key.txt")).unwrap();
    let public = key.lines().find_map(|line| line.strip_prefix("# public key: ")).unwrap();
    public.parse().unwrap()
}

#[test]
fn age_opens_what_we_seal_whatever_its_length() {
    if !have(&[Need::Program("age"), Need::Program("age-keygen")]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let recipient = recipient(folder.path());
    for length in [0, 1, 65_535, 65_536, 65_537, 131_072, 300_001] {
        let content: Vec<u8> = (0..=255).cycle().take(length).collect();
        let mut sealed = Sealed::new(Vec::new(), &recipient).unwrap();
        for piece in content.chunks(777) {
            sealed.write_all(piece).unwrap();
        }
        let sealed = sealed.finish().unwrap();
        assert!(length < 300 || memchr::memmem::find(&sealed, &content[..256]).is_none(), "it is readable");
        fs::write(folder.path().join("sealed"), sealed).unwrap();
        let output = decrypt(folder.path());
        assert!(output.status.success(), "{length}: {output:?}");
        // `age` creates no file for empty content.
        let plain = folder.path().join("plain");
        assert_eq!(fs::read(&plain).unwrap_or_default(), content, "{length}");
        assert!(length == 0 || fs::remove_file(plain).is_ok());
    }
}

#[test]
fn of_a_sealed_stream_that_is_cut_all_whole_chunks_are_read() {
    if !have(&[Need::Program("age"), Need::Program("age-keygen")]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let recipient = recipient(folder.path());
    let content: Vec<u8> = (0..=255).cycle().take(400_000).collect();
    let mut sealed = Sealed::new(Vec::new(), &recipient).unwrap();
    sealed.write_all(&content).unwrap();
    let sealed = sealed.finish().unwrap();
    fs::write(folder.path().join("sealed"), &sealed[..300_000]).unwrap();
    let output = decrypt(folder.path());
    assert!(!output.status.success(), "the cut is noticed");
    let plain = fs::read(folder.path().join("plain")).unwrap();
    assert!(plain.len() >= 3 * 65_536 && content.starts_with(&plain), "{} bytes", plain.len());
}
