//! Tests with a misbehaving server: a clear error, in bounded time, and no partial file.

use std::time::Duration;

use landfall_fetch::{Algorithm, Patience};
use landfall_net::Backoff;
use landfall_testkit::{FileServer, Serve};
use serde_json::json;
use tempfile::TempDir;

use super::decision::{Action, Artefact};
use super::request::{Request, Trust};
use super::steps::images::bring;
use super::{DecideError, decide};
use crate::environment::HostEnvironment;

/// Short timeouts, so that a test sees the end of every wait.
const QUICK: Patience = Patience {
    total: Duration::from_secs(8),
    idle: Duration::from_secs(3),
    connect: Duration::from_secs(20),
    rounds: Backoff::millis::<20, 20>().tries::<2>(),
};

struct Bucket {
    folder: TempDir,
    server: FileServer,
}

impl Bucket {
    fn new() -> Self {
        let bucket = Self { folder: tempfile::tempdir().unwrap(), server: FileServer::start().unwrap() };
        bucket.put("ca.crt", bucket.server.authority());
        bucket.put("usr/lib/os-release", "ID=coreos\nVERSION_ID=2000.0.0\nCOREOS_BOARD=amd64-usr\n");
        bucket
    }

    fn put(&self, path: &str, text: &str) {
        let path = self.folder.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn environment(&self) -> HostEnvironment {
        let env = HostEnvironment::new(self.folder.path(), Some(&self.folder.path().join("ca.crt"))).unwrap();
        HostEnvironment { documents: QUICK, images: Some(QUICK), ..env }
    }

    async fn decide(&self) -> Result<(), String> {
        let request = Request {
            force_kube_version: Some("v1.9.3".to_owned()),
            manifest_urls: vec![self.server.url("/m.json")],
            trust: Trust { verify: false, ..Trust::default() },
            upgrade_os: false,
            ..Request::default()
        };
        let decided = decide(&self.environment(), &request).await;
        decided.map(drop).map_err(|error: DecideError| landfall_model::chain(&error).to_string())
    }

    async fn bring(&self, urls: &[&str], content: &[u8]) -> Result<(), String> {
        let hash = landfall_fetch::Digest::of(Algorithm::Sha512, content);
        let artefact = Artefact {
            name: "docker".to_owned(),
            version: "17.03".to_owned(),
            system: None,
            digest: format!("sha512-{}", hash.hex()).parse().unwrap(),
            path: "/var/lib/torcx/store/2000.0.0/docker:17.03.torcx.tgz".into(),
            action: Action::Fetch { urls: urls.iter().map(|path| self.server.url(path)).collect() },
        };
        let brought = bring(&self.environment(), &artefact, &|_, _| {}).await;
        brought.map(drop).map_err(|error| error.to_string())
    }

    /// Returns the visible names in the store.
    fn store(&self) -> Vec<String> {
        let dir = self.folder.path().join("var/lib/torcx/store/2000.0.0");
        let names = std::fs::read_dir(dir).into_iter().flatten().flatten();
        let names = names.map(|entry| entry.file_name().into_string().unwrap());
        names.filter(|name| !name.starts_with('.')).collect()
    }
}

fn misdeeds() -> Vec<(&'static str, Serve)> {
    let bytes = b"0123456789".repeat(100);
    vec![
        ("answered 404", Serve::Status(404)),
        ("answered 500", Serve::Status(500)),
        ("answered 403", Serve::Status(403)),
        // Truncated in every attempt.
        ("", Serve::Cut { bytes, after: 500, times: u32::MAX }),
        // Slow loris: a byte now and then, without end.
        ("did not complete within", Serve::Drip { claimed: 100_000 }),
        ("sent nothing for", Serve::Claim { claimed: 1000 }),
        ("longer than the", Serve::Claim { claimed: 1 << 60 }),
        ("cannot get", Serve::Redirect("/m.json".to_owned())),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manifest_that_does_not_come_is_told_and_nothing_is_decided() {
    for (told, serve) in misdeeds() {
        let bucket = Bucket::new();
        bucket.server.serve("/m.json", serve.clone());
        let error = bucket.decide().await.expect_err(told);
        assert!(error.contains("cannot fetch the manifest for 2000.0.0"), "{serve:?}: {error}");
        assert!(error.contains(told), "{serve:?}: {error}");
        assert!(!bucket.folder.path().join("var").exists(), "{serve:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_does_not_come_is_told_and_has_no_name() {
    for (told, serve) in misdeeds() {
        let bucket = Bucket::new();
        bucket.server.serve("/m.json", serve.clone());
        let error = bucket.bring(&["/m.json"], b"another").await.expect_err(told);
        assert!(error.contains("cannot fetch docker 17.03") && error.contains(told), "{serve:?}: {error}");
        assert_eq!(bucket.store(), [""; 0], "{serve:?}");
    }
    let bucket = Bucket::new();
    bucket.server.file("/i", b"wrong".to_vec());
    let error = bucket.bring(&["/i"], b"right").await.unwrap_err();
    assert!(error.contains("is not what was expected: its sha512 is"), "{error}");
    assert_eq!(bucket.store(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn mirrors_are_asked_in_turn_and_a_broken_download_is_resumed() {
    let bucket = Bucket::new();
    let bytes = b"0123456789".repeat(50_000);
    bucket.server.serve("/gone", Serve::Status(500));
    bucket.server.file("/wrong", b"wrong".to_vec());
    bucket.server.serve("/right", Serve::Cut { bytes: bytes.clone(), after: 200_000, times: 1 });
    bucket.bring(&["/gone", "/wrong", "/right"], &bytes).await.unwrap();
    assert_eq!(bucket.store(), ["docker:17.03.torcx.tgz"]);
    let asked = bucket.server.asked();
    assert!(asked.iter().any(|line| line.starts_with("GET /right from ")), "{asked:?}");
    // The list of images has mirrors as well.
    let manifest = json!({"kind": "torcx-package-list-v0", "value": {"packages": []}}).to_string();
    bucket.server.file("/mirror.json", manifest);
    let request = Request {
        force_kube_version: Some("v1.9.3".to_owned()),
        manifest_urls: vec![bucket.server.url("/m.json"), bucket.server.url("/mirror.json")],
        trust: Trust { verify: false, ..Trust::default() },
        upgrade_os: false,
        ..Request::default()
    };
    let error = decide(&bucket.environment(), &request).await.unwrap_err();
    assert!(matches!(error, DecideError::Plan { .. }), "the mirror was not asked: {error:?}");
}

/// A process with earlier write access to the store creates links under the names of images.
#[tokio::test(flavor = "multi_thread")]
async fn links_planted_at_the_names_of_images_lead_nowhere() {
    let bucket = Bucket::new();
    let store = bucket.folder.path().join("var/lib/torcx/store/2000.0.0");
    std::fs::create_dir_all(&store).unwrap();
    let victim = bucket.folder.path().join("victim");
    std::fs::write(&victim, "precious").unwrap();
    std::os::unix::fs::symlink(&victim, store.join("docker:17.03.torcx.tgz")).unwrap();
    bucket.server.file("/i", b"image".to_vec());
    bucket.bring(&["/i"], b"image").await.unwrap();
    let found = std::fs::symlink_metadata(store.join("docker:17.03.torcx.tgz")).unwrap();
    assert!(found.is_file(), "the link is still there");
    assert_eq!(std::fs::read_to_string(&victim).unwrap(), "precious");
    // The same for the hidden temporary names beside them.
    for entry in std::fs::read_dir(&store).unwrap() {
        std::fs::remove_file(entry.unwrap().path()).unwrap();
    }
    for hidden in [".docker:17.03.torcx.tgz.landfall-part", ".docker:17.03.torcx.tgz.landfall-part-note"] {
        std::os::unix::fs::symlink(&victim, store.join(hidden)).unwrap();
        let brought = bucket.bring(&["/i"], b"image").await;
        assert!(brought.is_err(), "a planted link was followed: {hidden}");
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "precious", "{hidden}");
        let _ = std::fs::remove_file(store.join(hidden));
    }
}
