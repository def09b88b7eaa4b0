//! Journals from systemd's tools, read with both readers.

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use landfall_journal::{Filter, Journal, Seek};
use landfall_testkit::{Need, have};
use tempfile::TempDir;

pub(crate) const UNITS: [&str; 4] =
    ["kubelet.service", "containerd.service", "ssh.service", "cloud-init.service"];

/// Not in the default `PATH`.
pub(crate) const REMOTE: &str = "/usr/lib/systemd/systemd-journal-remote";

/// Start time of the samples: microseconds since 1970, on a full second.
pub(crate) const START: u64 = 1_700_000_000_000_000;

/// Options for creating a journal file.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent properties, named where they are set")]
pub(crate) struct Make {
    pub(crate) compact: bool,
    pub(crate) keyed_hash: bool,
    pub(crate) compress: bool,
    pub(crate) sealed: bool,
}

pub(crate) const USUAL: Make = Make { compact: true, keyed_hash: true, compress: true, sealed: false };
pub(crate) const OLD: Make = Make { compact: false, keyed_hash: false, compress: false, sealed: false };

pub(crate) struct Workshop {
    folder: TempDir,
}

// === impl Workshop ===

impl Workshop {
    /// Returns `None`, and records the test as skipped, if systemd's tools are missing.
    pub(crate) fn open() -> Option<Self> {
        let needs = [Need::Program("journalctl"), Need::Program(REMOTE)];
        have(&needs).then(|| Self { folder: TempDir::new().unwrap() })
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Converts an export stream to a journal file. An existing file would be appended to.
    pub(crate) fn journal(&self, name: &str, make: Make, stream: &[u8]) -> PathBuf {
        let path = self.path(name);
        assert!(!path.exists());
        let mut remote = if make.sealed { sealing_remote() } else { Command::new(REMOTE) };
        let mut child = configure(&mut remote, make, &path).spawn().unwrap();
        child.stdin.take().unwrap().write_all(stream).unwrap();
        expect_success("systemd-journal-remote", child.wait_with_output().unwrap());
        path
    }
}

/// Runs `systemd-journal-remote` with its standard input as source and a file as output.
pub(crate) fn configure<'a>(remote: &'a mut Command, make: Make, output: &Path) -> &'a mut Command {
    let number = |flag| if flag { "1" } else { "0" };
    remote
        .arg("--split-mode=none")
        .arg(format!("--compress={}", make.compress))
        .arg(format!("--seal={}", make.sealed))
        .arg(format!("--output={}", output.display()))
        .arg("-")
        .env("SYSTEMD_JOURNAL_COMPACT", number(make.compact))
        .env("SYSTEMD_JOURNAL_KEYED_HASH", number(make.keyed_hash))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
}

/// Sealing requires a key from the system's journal directory, which is hidden by an empty one for this process only.
fn sealing_remote() -> Command {
    let script = "mkdir -p /var/log/journal && mount -t tmpfs none /var/log/journal \
        && mkdir /var/log/journal/$(cat /etc/machine-id) \
        && journalctl --setup-keys --interval=1s --force >/dev/null 2>&1 && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, "sh", REMOTE]);
    command
}

/// Returns the output of journalctl in export format.
pub(crate) fn journalctl(arguments: &[&str]) -> Vec<u8> {
    let mut command = Command::new("journalctl");
    command.args(["--quiet", "--no-pager", "--output=export"]).args(arguments).env("TZ", "UTC");
    without_sequence(expect_success("journalctl", command.output().unwrap()).stdout)
}

/// Removes two lines that versions after 252 add; they repeat parts of the cursor.
fn without_sequence(export: Vec<u8>) -> Vec<u8> {
    if !export.windows(10).any(|bytes| bytes == b"\n__SEQNUM=") {
        return export;
    }
    let added = |line: &&[u8]| !line.starts_with(b"__SEQNUM=") && !line.starts_with(b"__SEQNUM_ID=");
    export.split_inclusive(|byte| *byte == b'\n').filter(added).flatten().copied().collect()
}

pub(crate) fn expect_success(program: &str, output: Output) -> Output {
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

/// Returns the output of this crate for the same entries.
pub(crate) fn ours(paths: &[&Path], filter: &Filter, seek: Seek) -> Vec<u8> {
    let mut journal = Journal::open(paths.iter().copied());
    journal.set_filter(filter.clone());
    journal.seek(seek);
    let export = drain(&mut journal);
    assert!(journal.problems().is_empty(), "{:?}", journal.problems());
    assert_eq!(journal.damage_count(), 0, "{:?}", journal.damage().collect::<Vec<_>>());
    export
}

pub(crate) fn everything(paths: &[&Path]) -> Vec<u8> {
    ours(paths, &Filter::default(), Seek::Start)
}

pub(crate) fn drain(journal: &mut Journal) -> Vec<u8> {
    let mut export = Vec::new();
    while let Some(mut entry) = journal.next() {
        entry.write_export(&mut export).unwrap();
    }
    export
}

/// Fails with the first different entry instead of megabytes.
#[track_caller]
pub(crate) fn assert_same(ours: &[u8], theirs: &[u8], what: &str) {
    if ours == theirs {
        return;
    }
    let at = ours.iter().zip(theirs).take_while(|(a, b)| a == b).count();
    let around = |bytes: &[u8]| {
        bytes[at.saturating_sub(300).min(bytes.len())..(at + 200).min(bytes.len())].escape_ascii().to_string()
    };
    panic!(
        "{what}: {} and {} bytes, different from byte {at}\nours:   …{}\ntheirs: …{}",
        ours.len(),
        theirs.len(),
        around(ours),
        around(theirs)
    );
}

/// Returns a stream of typical entries of a node: most fields repeat, messages differ, a few are long, have line breaks
/// or are not UTF-8. The same arguments return the same stream.
pub(crate) fn sample(entries: u64, seed: u64, start: u64) -> Vec<u8> {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let boots: Vec<String> = (0..3).map(|_| random.id()).collect();
    let mut stream = Vec::new();
    let (mut realtime, mut monotonic) = (start, 1_000_000);
    for number in 0..entries {
        let step = 1 + random.below(3000);
        (realtime, monotonic) = (realtime + step, monotonic + step);
        let boot = &boots[usize::try_from(number * 3 / entries).unwrap()];
        let unit = UNITS[usize::try_from(random.below(4)).unwrap()];
        let mut head = String::new();
        let _ = write!(
            head,
            "__REALTIME_TIMESTAMP={realtime}\n__MONOTONIC_TIMESTAMP={monotonic}\n_BOOT_ID={boot}\n_TRANSPORT=stdout\n\
             PRIORITY={}\nSYSLOG_IDENTIFIER={}\n_PID={}\n_UID=0\n_SYSTEMD_UNIT={unit}\n_HOSTNAME=node-17.example.net\n\
             _CMDLINE=/usr/bin/{} --config=/etc/{unit}/config.yaml\n",
            3 + random.below(4),
            &unit[..3],
            1 + random.below(9),
            &unit[..3],
        );
        if number % 41 == 0 {
            let _ = write!(head, "UNIT={unit}\n_UID=7\nCODE_FUNC=\n");
        }
        stream.extend_from_slice(head.as_bytes());
        let message = random.message(number);
        match number % 50 {
            7 => field(&mut stream, "MESSAGE", format!("{message}\nsecond line\t\u{1}\u{7f}").as_bytes()),
            13 => field(&mut stream, "MESSAGE", &[message.as_bytes(), b"\xff\x00\x80"].concat()),
            21 => field(&mut stream, "MESSAGE", message.repeat(40).as_bytes()),
            22 => field(&mut stream, "MESSAGE", format!("{message} grüße 🚀 \u{fdd0}").as_bytes()),
            _ => stream.extend_from_slice(format!("MESSAGE={message} grüße\n").as_bytes()),
        }
        stream.push(b'\n');
    }
    stream
}

fn field(stream: &mut Vec<u8>, name: &str, value: &[u8]) {
    stream.extend_from_slice(
        &[name.as_bytes(), b"\n", &(value.len() as u64).to_le_bytes(), value, b"\n"].concat(),
    );
}

/// A small random number generator with a fixed seed (xorshift), so that failures are reproducible.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }

    fn id(&mut self) -> String {
        format!("{:016x}{:016x}", self.below(u64::MAX), self.below(u64::MAX))
    }

    fn message(&mut self, number: u64) -> String {
        const WORDS: [&str; 8] =
            ["pod", "sandbox", "failed", "to", "pull", "image:", "connection", "refused"];
        let count = 3 + self.below(12);
        let words: Vec<_> = (0..count).map(|_| WORDS[usize::try_from(self.below(8)).unwrap()]).collect();
        format!("{number} {}", words.join(" "))
    }
}

pub(crate) fn read(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap()
}
