//! `landfall node prepare` with the real `systemd-sysext`, in a mount namespace that leaves this machine's own
//! directories unchanged.

use std::io::Cursor;
use std::process::Command;

use backhand::compression::{CompressionOptions, Compressor, Gzip};
use backhand::{FilesystemCompressor, FilesystemWriter, NodeHeader};
use landfall_testkit::{FileServer, Need, have};

use crate::command::{Bench, Run};

const NEEDS: &[Need] = &[Need::Root, Need::Program("systemd-sysext"), Need::Program("unshare")];

/// Mounts separate directories over those of the machine in the namespace, and records the files that the run left.
const SCRIPT: &str = r#"
mount --make-rprivate /
mount --make-rshared /
own=$(mktemp -d)
mount -t tmpfs tmpfs "$own"
for folder in etc var/lib; do
  mkdir -p "$own/$folder/upper" "$own/$folder/work"
  mount -t overlay overlay -o "lowerdir=/$folder,upperdir=$own/$folder/upper,workdir=$own/$folder/work" "/$folder"
done
mount -t tmpfs tmpfs /opt
mount -t tmpfs tmpfs /run
mount --bind os-release /usr/lib/os-release
mkdir -p /etc/extensions
code=0
"$0" node prepare "$@" || code=$?
echo "marker: $(cat /opt/marker 2>/dev/null || echo none)"
echo "kubelet.env: $(cat /etc/kubernetes/kubelet.env 2>/dev/null || echo none)"
systemd-sysext unmerge >/dev/null 2>&1 || true
umount -l "$own" && rmdir "$own"
exit "$code"
"#;

fn architecture() -> &'static str {
    if cfg!(target_arch = "aarch64") { "arm64" } else { "x86-64" }
}

/// An extension with files in `/opt` only, so that `/usr` of this machine is not changed.
fn image() -> Vec<u8> {
    let gzip = CompressionOptions::Gzip(Gzip { compression_level: 6, window_size: 15, strategies: 0 });
    let mut writer = FilesystemWriter::default();
    writer.set_compressor(FilesystemCompressor::new(Compressor::Gzip, Some(gzip)).unwrap());
    let header = NodeHeader::new(0o755, 0, 0, 0);
    writer.push_dir_all("/usr/lib/extension-release.d", header).unwrap();
    writer.push_dir_all("/opt", header).unwrap();
    let release = "/usr/lib/extension-release.d/extension-release.kubernetes";
    writer.push_file(Cursor::new(b"ID=flatcar\nSYSEXT_LEVEL=1.0\n".to_vec()), release, header).unwrap();
    writer.push_file(Cursor::new(b"merged".to_vec()), "/opt/marker", header).unwrap();
    let mut bytes = Cursor::new(Vec::new());
    writer.write(&mut bytes).unwrap();
    bytes.into_inner()
}

/// Prepares a Flatcar node that is this machine; systemd merges extensions into these directories.
fn prepare(hierarchies: &str) -> Run {
    let bench = Bench::new();
    let bakery = FileServer::start().unwrap();
    bench.file("ca.crt", bakery.authority());
    bench.file("os-release", "ID=flatcar\nVERSION_ID=4152.2.0\nSYSEXT_LEVEL=1.0\n");
    let file = format!("kubernetes-v1.32.4-{}.raw", architecture());
    let path = bench.file(&file, image());
    let sum = Command::new("sha256sum").arg(path).output().unwrap();
    let hash = String::from_utf8(sum.stdout).unwrap().split(' ').next().unwrap().to_owned();
    bakery.file("/kubernetes/SHA256SUMS", format!("{hash}  {file}\n"));
    bakery.file(&format!("/kubernetes/{file}"), image());
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-euc", SCRIPT, env!("CARGO_BIN_EXE_landfall")])
        .args(["--upgrade-os=false", "--no-verify-signatures", "--force-kube-version=v1.32.4"])
        .arg(format!("--extension-url={}", bakery.url("/{{.Extension}}/")))
        .arg(format!("--ca-file={}", bench.path().join("ca.crt").display()))
        .current_dir(bench.path())
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("SYSTEMD_SYSEXT_HIERARCHIES", hierarchies)
        .output()
        .unwrap();
    output.into()
}

#[test]
fn systemd_merges_what_was_laid_down_and_the_kubelet_may_start() {
    if !have(NEEDS) {
        return;
    }
    let run = prepare("/opt");
    assert_eq!(run.code, 0, "{run:?}");
    assert!(run.stdout.contains("marker: merged"), "{run:?}");
    assert!(run.stdout.contains("kubelet.env: KUBELET_IMAGE_TAG=v1.32.4"), "{run:?}");
}

/// systemd leaves an extension out and exits with 0: here that is an error, and the kubelet does not start.
#[test]
fn what_systemd_leaves_out_without_a_word_is_an_error() {
    if !have(NEEDS) {
        return;
    }
    let run = prepare("/srv");
    assert_eq!(run.code, 1, "{run:?}");
    assert!(run.stderr.contains("systemd skipped kubernetes without a message"), "{run:?}");
    assert!(run.stdout.contains("marker: none") && run.stdout.contains("kubelet.env: none"), "{run:?}");
}
