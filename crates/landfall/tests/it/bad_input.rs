//! Every kind of bad input gets a clear line or the state `unknown`, the documented exit code, and no panic.

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};

use landfall_testkit::{Need, have};

use crate::command::{Bench, Run};

const FAILURE: &str = "failed to run Kubelet: running with swap on is not supported, please disable swap\n";

#[test]
fn a_missing_file() {
    Bench::new()
        .run(&["diagnose", "nowhere.log"])
        .assert_refused(1, "cannot read `nowhere.log`: No such file");
}

#[test]
fn a_missing_file_beside_a_good_one() {
    let bench = Bench::new();
    bench.file("kubelet.log", FAILURE);
    let run = bench.run(&["diagnose", "--output", "json", "nowhere.log", "kubelet.log"]);
    assert_eq!(run.code, 2, "{run:?}");
    let report = run.report();
    assert_eq!(report["verdict"]["cause"], "swap-enabled");
    let error = report["sources"][0]["error"].as_str().unwrap();
    assert!(error.contains("No such file"), "{error}");
}

/// A log without findings proves nothing about the unreadable file.
#[test]
fn a_missing_file_beside_a_healthy_one() {
    let bench = Bench::new();
    bench.file("kubelet.log", "I0102 03:04:05.000000       1 server.go:1] Started kubelet\n");
    let run = bench.run(&["diagnose", "--output", "json", "kubelet.log", "nowhere.log"]);
    assert_eq!(run.code, 1, "{run:?}");
    assert!(run.stderr.contains("error: cannot read `nowhere.log`: No such file"), "{run:?}");
    assert!(run.stderr.contains("hint: check the path"), "{run:?}");
    assert_eq!(run.report()["verdict"]["cause"], serde_json::Value::Null);
}

#[test]
fn a_directory_without_logs() {
    let bench = Bench::new();
    std::fs::create_dir_all(bench.path().join("empty/inner")).unwrap();
    bench.run(&["diagnose", "empty"]).assert_refused(1, "cannot read `empty`: it contains no readable file");
}

#[test]
fn an_empty_file() {
    let bench = Bench::new();
    bench.file("empty.log", "");
    let run = bench.run(&["diagnose", "--output", "json", "empty.log"]);
    assert_eq!(run.code, 0);
    assert_eq!(run.report()["verdict"]["state"], "unknown");
    assert_eq!(run.report()["verdict"]["cause"], serde_json::Value::Null);
}

#[test]
fn empty_standard_input() {
    let run = Bench::new().run(&["diagnose", "-", "--output", "json"]);
    assert_eq!(run.code, 0);
    assert_eq!(run.report()["verdict"]["state"], "unknown");
}

/// The limit on address space proves that the line is not kept in memory.
#[test]
fn a_line_of_one_gibibyte() {
    const LIMIT: &str = "--as=402653184";
    let bench = Bench::new();
    let binary = env!("CARGO_BIN_EXE_landfall");
    let mut child = std::process::Command::new("prlimit")
        .args([LIMIT, binary, "diagnose", "--output", "json", "-"])
        .current_dir(bench.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let block = vec![b'x'; 1024 * 1024];
    for _ in 0..1024 {
        stdin.write_all(&block).unwrap();
    }
    stdin.write_all(b"\n").unwrap();
    stdin.write_all(FAILURE.as_bytes()).unwrap();
    drop(stdin);
    let run: Run = child.wait_with_output().unwrap().into();
    assert_eq!(run.code, 2, "{run:?}");
    let report = run.report();
    assert_eq!(report["verdict"]["cause"], "swap-enabled");
    assert_eq!(report["findings"][0]["evidence"][0]["line"], 2);
}

#[test]
fn invalid_utf8_and_nul_bytes() {
    let bench = Bench::new();
    let mut log = b"\xff\xfe\x80 garbage \0\0\0\n".to_vec();
    log.extend_from_slice(b"Jan 02 03:04:05 n1 kubelet[1]: \xc3\x28 ");
    log.extend_from_slice(FAILURE.as_bytes());
    bench.file("kubelet.log", log);
    let run = bench.run(&["diagnose", "--output", "json", "kubelet.log"]);
    assert_eq!(run.report()["verdict"]["cause"], "swap-enabled");
}

#[test]
fn a_closed_pipe_on_standard_output() {
    let bench = Bench::new();
    let mut child = bench.command(&["diagnose", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    child.stdin.take().unwrap().write_all(FAILURE.as_bytes()).unwrap();
    let run: Run = child.wait_with_output().unwrap().into();
    assert_eq!((run.code, run.stderr.as_str()), (2, ""), "{run:?}");
}

#[test]
fn a_full_disk_behind_standard_output() {
    let bench = Bench::new();
    bench.file("kubelet.log", FAILURE);
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let run: Run = bench.command(&["diagnose", "kubelet.log"]).stdout(full).output().unwrap().into();
    run.assert_refused(1, "write to standard output: No space left on device");
}

/// Root can read everything, unless the capability is removed.
#[test]
fn a_folder_that_may_not_be_listed() {
    if !have(&[Need::Root, Need::Program("setpriv")]) {
        return;
    }
    let bench = Bench::new();
    bench.file("logs/kubelet.log", FAILURE);
    let closed = std::fs::Permissions::from_mode(0o000);
    std::fs::set_permissions(bench.path().join("logs"), closed).unwrap();
    let run: Run = Command::new("setpriv")
        .args(["--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-all"])
        .args([env!("CARGO_BIN_EXE_landfall"), "diagnose", "logs"])
        .current_dir(bench.path())
        .output()
        .unwrap()
        .into();
    run.assert_refused(1, "cannot read `logs`: Permission denied");
}

/// Only its beginning is searched, and the report says so.
#[test]
fn a_line_longer_than_a_chunk() {
    let bench = Bench::new();
    let long = "x".repeat(3 << 20);
    bench.file("kubelet.log", format!("{FAILURE}{long}\n"));
    let run = bench.run(&["diagnose", "--output", "json", "kubelet.log"]);
    assert_eq!(run.code, 2, "{:?}", run.stderr);
    let error = run.report()["sources"][0]["error"].as_str().unwrap().to_owned();
    assert!(error.contains("only the first 1 MiB of 1 longer line"), "{error}");
}

/// Too many rules are refused before any of them is compiled.
#[test]
fn a_file_of_too_many_rules() {
    let bench = Bench::new();
    let rule = |number: usize| {
        format!(
            "[[rule]]\nid = \"r{number}\"\ncause = \"swap-enabled\"\nsources = [\"any\"]\nstrength = \"weak\"\nmatch.any = [\"literal {number}\"]\nmatch.regex = '(a{{1,200}}){number}'\n"
        )
    };
    bench.file("rules.toml", (0..20_000).map(rule).collect::<String>());
    bench.file("kubelet.log", FAILURE);
    bench
        .run(&["diagnose", "--rules", "rules.toml", "kubelet.log"])
        .assert_refused(1, "more than 8192 rules");
}

#[test]
fn a_device_and_a_binary_file() {
    let bench = Bench::new();
    bench.run(&["diagnose", "/dev/null"]).assert_refused(1, "`/dev/null` is a device");
    bench.file("kubelet", b"\x7fELF\x02\x01\x01\0");
    bench
        .run(&["diagnose", "kubelet"])
        .assert_refused(1, "cannot read `kubelet`: it holds a program, not text");
    bench.file("logs.gz", b"\x1f\x8b\x08\0\0\0\0\0\0\0");
    bench.run(&["diagnose", "logs.gz"]).assert_refused(1, "cannot read `logs.gz`: incomplete deflate stream");
}

#[test]
fn a_terminal_cannot_be_driven_by_a_log() {
    let bench = Bench::new();
    bench.file("kubelet.log", format!("\x1b[2J\x1b]0;owned\x07 {FAILURE}"));
    let run = bench.run(&["diagnose", "kubelet.log"]);
    assert_eq!(run.code, 2);
    assert!(!run.stdout.contains(['\x1b', '\x07']), "{run:?}");
}

#[test]
fn names_of_files_neither_leak_nor_drive_a_terminal() {
    let bench = Bench::new();
    bench.file("logs/\x1b[2J token=abcdef.0123456789abcdef\n# heading.log", FAILURE);
    for output in ["text", "json", "markdown", "html"] {
        let run = bench.run(&["diagnose", "--output", output, "logs"]);
        assert_eq!(run.code, 2, "{run:?}");
        assert!(!run.stdout.contains("0123456789abcdef") && !run.stdout.contains('\x1b'), "{run:?}");
        assert!(!run.stdout.contains("\n# heading"), "{run:?}");
    }
}

/// A long name of 1 MiB outside must not be multiplied by every file inside.
#[test]
fn an_archive_of_long_names_stays_small() {
    let bench = Bench::new();
    let script = "\
import io, tarfile
inner = io.BytesIO()
with tarfile.open(fileobj=inner, mode='w') as tar:
    for number in range(2000):
        info = tarfile.TarInfo(f'{number}.gz'); info.size = 4
        tar.addfile(info, io.BytesIO(b'\\x1f\\x8b\\x08\\x00'))
    info = tarfile.TarInfo('fine.log'); info.size = 5
    tar.addfile(info, io.BytesIO(b'fine\\n'))
outer = tarfile.open('names.tar', 'w', format=tarfile.GNU_FORMAT)
info = tarfile.TarInfo('n' * 1000000); info.size = len(inner.getvalue())
outer.addfile(info, io.BytesIO(inner.getvalue())); outer.close()
";
    let made = std::process::Command::new("python3").args(["-c", script]).current_dir(bench.path()).status();
    assert!(made.unwrap().success());
    let binary = env!("CARGO_BIN_EXE_landfall");
    let arguments = ["--as=536870912", binary, "diagnose", "--output", "json", "names.tar"];
    let run =
        std::process::Command::new("prlimit").args(arguments).current_dir(bench.path()).output().unwrap();
    assert_eq!(run.status.code(), Some(0), "{}", String::from_utf8_lossy(&run.stderr));
    assert!(run.stdout.len() < 8 << 20, "{} bytes of report", run.stdout.len());
}

/// Links lead out of the directory, or form loops.
#[test]
fn links_inside_a_folder_are_not_followed() {
    let bench = Bench::new();
    bench.file("outside.log", FAILURE);
    bench.file("logs/fine.log", "all is well\n");
    std::os::unix::fs::symlink("../outside.log", bench.path().join("logs/link.log")).unwrap();
    std::os::unix::fs::symlink("..", bench.path().join("logs/circle")).unwrap();
    let run = bench.run(&["diagnose", "--output", "json", "logs"]);
    assert_eq!(run.report()["sources"].as_array().unwrap().len(), 1, "{run:?}");
}
