//! Preparing a node by system extensions, from a bakery behind TLS to the link that makes them count.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use backhand::compression::{CompressionOptions, Compressor, Gzip};
use backhand::{FilesystemCompressor, FilesystemWriter, NodeHeader};
use landfall_fetch::{Algorithm, Digest};
use landfall_model::step::Outcome;
use landfall_node::prepare::decision::Backend;
use landfall_node::prepare::os_release::Architecture;
use landfall_node::prepare::request::{Request, Trust};
use landfall_node::prepare::run::{Other, Prepared, prepare};
use landfall_node::prepare::world::HostWorld;
use landfall_steps::events::EventStream;
use landfall_testkit::FileServer;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

struct Node {
    folder: TempDir,
    bakery: FileServer,
}

impl Node {
    fn new() -> Self {
        let node = Self { folder: tempfile::tempdir().unwrap(), bakery: FileServer::start().unwrap() };
        node.put("usr/lib/os-release", b"ID=flatcar\nVERSION_ID=4152.2.0\nSYSEXT_LEVEL=1.0\n");
        node.put("ca.crt", node.bakery.authority().as_bytes());
        node
    }

    fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    fn put(&self, path: &str, bytes: &[u8]) {
        std::fs::create_dir_all(self.path(path).parent().unwrap()).unwrap();
        std::fs::write(self.path(path), bytes).unwrap();
    }

    /// Offers these images of `kubernetes`, by version.
    fn offer(&self, images: &[(&str, Vec<u8>)]) {
        let mut sums = String::new();
        for (version, image) in images {
            let file = format!("kubernetes-{version}-{}.raw", Architecture::here().unwrap().name());
            sums.push_str(&format!("{}  {file}\n", Digest::of(Algorithm::Sha256, image).hex()));
            self.bakery.file(&format!("/kubernetes/{file}"), image.clone());
        }
        self.bakery.file("/kubernetes/SHA256SUMS", sums);
    }

    async fn prepare(&self) -> Prepared {
        let request = Request {
            force_kube_version: Some("v1.32.4".to_owned()),
            extension_urls: vec![self.bakery.url("/{{.Extension}}/")],
            trust: Trust { verify: false, ..Trust::default() },
            upgrade_os: false,
            backend: Some(Backend::Sysext),
            ..Request::default()
        };
        let world = HostWorld::new(self.folder.path(), Some(&self.path("ca.crt"))).unwrap();
        let cancel = CancellationToken::new();
        prepare(&Arc::new(world), &request, Other::Respect, &EventStream::default(), &cancel).await.unwrap()
    }

    #[track_caller]
    fn assert_refused(&self, prepared: &Prepared, told: &str) {
        let Prepared::Run(Outcome::Failed { step, reason, .. }) = prepared else { panic!("{prepared:?}") };
        assert_eq!(step, "check-images", "{reason}");
        assert!(reason.contains(told), "{reason}");
        assert!(
            std::fs::symlink_metadata(self.path("etc/extensions/kubernetes.raw")).is_err(),
            "the link has flipped"
        );
        assert!(!self.path("etc/kubernetes/kubelet.env").exists(), "the kubelet could start");
    }
}

fn image(release: &str, release_name: &str, extra: Option<&str>) -> Vec<u8> {
    let mut writer = FilesystemWriter::default();
    let gzip = CompressionOptions::Gzip(Gzip { compression_level: 6, window_size: 15, strategies: 0 });
    writer.set_compressor(FilesystemCompressor::new(Compressor::Gzip, Some(gzip)).unwrap());
    let header = NodeHeader::new(0o755, 0, 0, 0);
    writer.push_dir_all("/usr/lib/extension-release.d", header).unwrap();
    writer.push_dir_all("/usr/bin", header).unwrap();
    let path = format!("/usr/lib/extension-release.d/extension-release.{release_name}");
    writer.push_file(Cursor::new(release.as_bytes().to_vec()), path, header).unwrap();
    writer.push_file(Cursor::new(b"#!/bin/sh\n".to_vec()), "/usr/bin/kubelet", header).unwrap();
    if let Some(extra) = extra {
        writer.push_dir_all(extra, header).unwrap();
    }
    let mut bytes = Cursor::new(Vec::new());
    writer.write(&mut bytes).unwrap();
    bytes.into_inner()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_extension_that_fits_is_linked_and_the_kubelet_may_start() {
    let node = Node::new();
    let good = image("ID=flatcar\nSYSEXT_LEVEL=1.0\n", "kubernetes", None);
    node.offer(&[("v1.32.3", b"older".to_vec()), ("v1.32.4", good.clone()), ("v1.33.0", b"newer".to_vec())]);
    assert_eq!(node.prepare().await, Prepared::Run(Outcome::Done));
    let name = format!("kubernetes-v1.32.4-{}.raw", Architecture::here().unwrap().name());
    let link = std::fs::read_link(node.path("etc/extensions/kubernetes.raw")).unwrap();
    assert_eq!(link, Path::new("/opt/extensions/kubernetes").join(&name));
    assert_eq!(std::fs::read(node.path("opt/extensions/kubernetes").join(name)).unwrap(), good);
    assert!(node.path("etc/kubernetes/kubelet.env").exists());
    assert_eq!(node.prepare().await, Prepared::Before);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_very_patch_the_newest_of_the_same_minor_is_taken() {
    let node = Node::new();
    let good = image("ID=_any\n", "kubernetes", None);
    node.offer(&[("v1.32.2", good.clone()), ("v1.32.10", good), ("v1.33.0", b"newer".to_vec())]);
    assert_eq!(node.prepare().await, Prepared::Run(Outcome::Done));
    let link = std::fs::read_link(node.path("etc/extensions/kubernetes.raw")).unwrap();
    assert!(link.display().to_string().contains("v1.32.10"), "{}", link.display());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_systemd_would_skip_or_choke_on_is_an_error_before_the_link_flips() {
    let cases = [
        (image("ID=debian\nVERSION_ID=12\n", "kubernetes", None), "made for `ID=debian`"),
        (image("ID=flatcar\nVERSION_ID=4230.2.0\n", "kubernetes", None), "made for `VERSION_ID=4230.2.0`"),
        (image("ID=_any\nARCHITECTURE=riscv64\n", "kubernetes", None), "made for `riscv64`"),
        (image("ID=_any\n", "another", None), "extension-release.kubernetes"),
        (image("ID=_any\n", "kubernetes", Some("/etc")), "holds `etc`"),
        (b"no image at all".to_vec(), "not a squashfs image"),
        (b"hsqs and then nothing of sense".to_vec(), "cannot be opened"),
    ];
    for (bytes, told) in cases {
        let node = Node::new();
        node.offer(&[("v1.32.4", bytes)]);
        node.assert_refused(&node.prepare().await, told);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_of_somebody_else_that_blocks_all_is_found() {
    let node = Node::new();
    node.offer(&[("v1.32.4", image("ID=_any\n", "kubernetes", None))]);
    node.put("var/lib/extensions/broken.raw", b"");
    node.assert_refused(
        &node.prepare().await,
        "`/var/lib/extensions/broken.raw` would block every extension",
    );
    // Masked is not broken.
    std::fs::remove_file(node.path("var/lib/extensions/broken.raw")).unwrap();
    std::os::unix::fs::symlink("/dev/null", node.path("var/lib/extensions/masked.raw")).unwrap();
    assert_eq!(node.prepare().await, Prepared::Run(Outcome::Done));
}
