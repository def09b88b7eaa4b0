//! Prepares a node with system extensions, from a bakery behind TLS to the link that activates them.

use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use backhand::compression::{CompressionOptions, Compressor, Gzip};
use backhand::{FilesystemCompressor, FilesystemWriter, NodeHeader};
use landfall_fetch::{Algorithm, Digest};
use landfall_model::step::Outcome;
use landfall_node::environment::HostEnvironment;
use landfall_node::prepare::decision::Backend;
use landfall_node::prepare::os_release::Architecture;
use landfall_node::prepare::request::{Request, Trust};
use landfall_node::prepare::run::{Other, Prepared, prepare};
use landfall_node::prepare::sysext::squashfs::Squashfs;
use landfall_node::prepare::why::Why;
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

    /// Serves these images of `kubernetes`, by version.
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
        let env = HostEnvironment::new(self.folder.path(), Some(&self.path("ca.crt"))).unwrap();
        let cancel = CancellationToken::new();
        prepare(&Arc::new(env), &request, Other::Respect, &EventStream::default(), &cancel).await.unwrap()
    }

    /// Prepares a directory that is not the running system: everything is installed, and its own boot does the rest.
    async fn prepare_for_its_boot(&self) {
        let prepared = self.prepare().await;
        assert!(matches!(prepared, Prepared::Run(Outcome::RebootNeeded { .. })), "{prepared:?}");
        assert!(!self.path("etc/kubernetes/kubelet.env").exists(), "the kubelet could start without it");
    }

    /// Simulates another boot than that of the installation.
    fn boot(&self) {
        let here = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
        for attempt in std::fs::read_dir(self.path("var/lib/landfall/node-prepare")).unwrap().flatten() {
            for file in std::fs::read_dir(attempt.path()).into_iter().flatten().flatten() {
                let text = std::fs::read_to_string(file.path()).unwrap();
                let (head, body) = text.trim_end().split_once('\n').unwrap();
                let body = body.replace(here.trim(), "00000000-0000-0000-0000-000000000000");
                let mut head: serde_json::Value = serde_json::from_str(head).unwrap();
                head["bytes"] = body.len().into();
                head["sha256"] = Digest::of(Algorithm::Sha256, body.as_bytes()).hex().into();
                std::fs::write(file.path(), format!("{head}\n{body}\n")).unwrap();
            }
        }
    }

    #[track_caller]
    fn assert_refused(&self, prepared: &Prepared, told: &str) {
        let Prepared::Failed { step, reason, why, .. } = prepared else { panic!("{prepared:?}") };
        assert_eq!((step.as_str(), *why), ("check-images", Why::Misfit), "{reason}");
        assert!(reason.contains(told), "{reason}");
        assert!(
            std::fs::symlink_metadata(self.path("etc/extensions/kubernetes.raw")).is_err(),
            "the link has flipped"
        );
        assert!(!self.path("etc/kubernetes/kubelet.env").exists(), "the kubelet could start");
    }
}

fn image(release: &str, release_name: &str, extra: Option<&str>) -> Vec<u8> {
    let gzip = CompressionOptions::Gzip(Gzip { compression_level: 6, window_size: 15, strategies: 0 });
    image_with(FilesystemCompressor::new(Compressor::Gzip, Some(gzip)).unwrap(), release, release_name, extra)
}

fn image_with(
    compressor: FilesystemCompressor,
    release: &str,
    release_name: &str,
    extra: Option<&str>,
) -> Vec<u8> {
    let mut writer = FilesystemWriter::default();
    writer.set_compressor(compressor);
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
    node.prepare_for_its_boot().await;
    let name = format!("kubernetes-v1.32.4-{}.raw", Architecture::here().unwrap().name());
    let link = std::fs::read_link(node.path("etc/extensions/kubernetes.raw")).unwrap();
    assert_eq!(link, Path::new("/opt/extensions/kubernetes").join(&name));
    assert_eq!(std::fs::read(node.path("opt/extensions/kubernetes").join(name)).unwrap(), good);
    // The machine booted, and systemd left the extension out.
    node.boot();
    let prepared = node.prepare().await;
    let Prepared::Failed { step, reason, why, .. } = prepared else { panic!("{prepared:?}") };
    assert_eq!((step.as_str(), why), ("verify-runtime", Why::NotActive), "{reason}");
    assert!(reason.contains("kubernetes did not become part of the system"), "{reason}");
    assert!(!node.path("etc/kubernetes/kubelet.env").exists());
    // The file in which systemd records merged extensions.
    node.put("usr/.systemd-sysext/extensions", b"kubernetes\n");
    assert_eq!(node.prepare().await, Prepared::Run(Outcome::Done));
    assert!(node.path("etc/kubernetes/kubelet.env").exists());
    assert_eq!(node.prepare().await, Prepared::Before);
    // Extensions that are linked and merged already need no boot.
    std::fs::remove_file(node.path("etc/kubernetes/kubelet.env")).unwrap();
    assert_eq!(node.prepare().await, Prepared::Run(Outcome::Done));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_very_patch_the_newest_of_the_same_minor_is_taken() {
    let node = Node::new();
    let good = image("ID=_any\n", "kubernetes", None);
    node.offer(&[("v1.32.2", good.clone()), ("v1.32.10", good), ("v1.33.0", b"newer".to_vec())]);
    node.prepare_for_its_boot().await;
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
    // A masked image is not a broken one.
    std::fs::remove_file(node.path("var/lib/extensions/broken.raw")).unwrap();
    std::os::unix::fs::symlink("/dev/null", node.path("var/lib/extensions/masked.raw")).unwrap();
    node.prepare_for_its_boot().await;
}

/// Images made by other tools: each compression, many names, and a file that spans blocks.
#[test]
fn images_of_another_maker_open() {
    let zstd = FilesystemCompressor::new(Compressor::Zstd, None).unwrap();
    let small = image_with(zstd, "ID=_any\n", "x", None);
    let mut opened = Squashfs::open(Cursor::new(&small)).unwrap();
    assert_eq!(opened.top().unwrap(), ["usr"]);
    let release = "/usr/lib/extension-release.d/extension-release.x";
    assert_eq!(opened.file(release, 100).unwrap().as_deref(), Some(&b"ID=_any\n"[..]));
    assert_eq!(opened.file("/usr/lib/none", 100).unwrap(), None);
    assert_eq!(opened.file("/usr/lib", 100).unwrap(), None, "a folder is no file");
    assert!(opened.file(release, 3).is_err(), "longer than anybody wants");

    let mut writer = FilesystemWriter::default();
    writer.set_compressor(FilesystemCompressor::new(Compressor::Zstd, None).unwrap());
    let header = NodeHeader::new(0o644, 0, 0, 0);
    let long: Vec<u8> = (0..150_000_u32).flat_map(u32::to_le_bytes).collect();
    writer.push_dir_all("/usr/lib/many", header).unwrap();
    for number in 0..3000 {
        let content = Cursor::new(format!("{number}").into_bytes());
        writer
            .push_file(content, format!("/usr/lib/many/file-with-a-rather-long-name-{number}"), header)
            .unwrap();
    }
    writer.push_file(Cursor::new(long.clone()), "/usr/long", header).unwrap();
    let mut bytes = Cursor::new(Vec::new());
    writer.write(&mut bytes).unwrap();
    let mut opened = Squashfs::open(bytes).unwrap();
    let found = opened.file("/usr/lib/many/file-with-a-rather-long-name-2999", 100).unwrap();
    assert_eq!(found.as_deref(), Some(&b"2999"[..]));
    assert_eq!(opened.file("/usr/long", 1 << 20).unwrap().as_deref(), Some(&long[..]));
}

/// Changing or truncating bytes gives an error or the same answer, and never a panic or a hang.
#[test]
fn a_damaged_image_is_an_error_or_the_same() {
    let whole = image("ID=_any\n", "x", None);
    let look = |bytes: &[u8]| {
        let mut opened = Squashfs::open(Cursor::new(bytes)).ok()?;
        opened.top().ok()?;
        opened.file("/usr/lib/extension-release.d/extension-release.x", 4096).ok()?
    };
    assert!(look(&whole).is_some());
    // After the size that the superblock states there is only padding.
    let used = usize::try_from(u64::from_le_bytes(whole[40..48].try_into().unwrap())).unwrap();
    for length in 0..used {
        assert_eq!(look(&whole[..length]), None, "{length} bytes of it");
    }
    for at in 0..used {
        for flip in [0x01, 0x80, 0xff] {
            let mut damaged = whole.clone();
            damaged[at] ^= flip;
            let _ = look(&damaged);
        }
    }
}
