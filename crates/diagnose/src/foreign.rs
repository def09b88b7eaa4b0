//! Text that a line's writer only quotes: user names, URLs, headers, container output.
//!
//! Its author must not choose the verdict, so it is blanked before a line is compared with the rules.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::LazyLock;

use aho_corasick::{AhoCorasick, AhoCorasickKind};
use memchr::memmem::{self, Finder};

use crate::listings;
use crate::pattern::COMM;
use crate::words::WORDS;

/// Words before the quoted program, directory or mount point of a container.
const CONTAINER_WORDS: [&[u8]; 2] = [b"exec: ", b"chdir to cwd ("];
const MOUNT_WORDS: [&[u8]; 1] = [b"to rootfs at "];

/// The kernel's own denials, which are not records of user actions.
const DENIALS: [&[u8]; 4] = [b"type=AVC ", b"type=1400 ", b"audit: type=1400 ", b"audit: AVC "];

/// Bytes of a line that contain a table's marker after a time and a program.
const TABLE_WINDOW: usize = 128;

/// Parts of device units that are names of file systems, partitions and devices.
const DEVICE_NAMES: [&[u8]; 3] = [b"by\\x2dlabel-", b"by\\x2dpartlabel-", b"by\\x2did-"];

/// Words before a process name and ID, in lines of the kernel and the service manager.
const PROCESS_WORDS: [&[u8]; 3] = [b"rocess ", b"client PID ", b"comm="];

/// Fields with file names in the kernel's denials.
const DENIAL_KEYS: [&[u8]; 6] = [b" name=", b" path=", b" srcname=", b" target=", b" info=", b" exe="];

/// Directories of programs and settings that a bootstrap needs.
pub(crate) const SYSTEM_FOLDERS: [&str; 8] =
    ["/bin/", "/etc/", "/opt/", "/proc/", "/run/", "/sbin/", "/usr/", "/var/lib/"];

/// Precedes the status of a failed request.
const REQUEST: &[u8] = b" request to http";

/// Start of the marker of a redacted secret.
const REDACTED: &[u8] = b"***<";

/// All words that may precede quoted text: almost all lines contain none of them.
static MARKS: LazyLock<Option<AhoCorasick>> = LazyLock::new(|| {
    let lists: [&[&[u8]]; 5] = [&CONTAINER_WORDS, &MOUNT_WORDS, &PROCESS_WORDS, &DEVICE_NAMES, &DENIALS];
    let words = lists.into_iter().flatten().chain(&[REQUEST, b": AVC "]).copied();
    let words = bytes(&WORDS.naming).chain(bytes(&WORDS.quoting_keys)).chain(words);
    AhoCorasick::builder().kind(Some(AhoCorasickKind::ContiguousNFA)).build(words).ok()
});

/// Searchers for words: creating them takes longer than searching a line.
struct Finders(Vec<Finder<'static>>);

static NAMING: LazyLock<Finders> = LazyLock::new(|| Finders::of(bytes(&WORDS.naming)));
static QUOTING: LazyLock<Finders> = LazyLock::new(|| Finders::of(bytes(&WORDS.quoting_keys)));
static DENIED: LazyLock<Finders> = LazyLock::new(|| Finders::of(DENIAL_KEYS));
static EXECUTED: LazyLock<Finders> = LazyLock::new(|| Finders::of(CONTAINER_WORDS));
static MOUNTED: LazyLock<Finders> = LazyLock::new(|| Finders::of(MOUNT_WORDS));
static PROCESSES: LazyLock<Finders> = LazyLock::new(|| Finders::of(PROCESS_WORDS));
static DEVICES: LazyLock<Finders> = LazyLock::new(|| Finders::of(DEVICE_NAMES));

fn bytes(words: &'static [String]) -> impl Iterator<Item = &'static [u8]> {
    words.iter().map(String::as_bytes)
}

impl Finders {
    fn of(words: impl IntoIterator<Item = &'static [u8]>) -> Self {
        Self(words.into_iter().map(Finder::new).collect())
    }

    fn ends<'w>(&'w self, line: &'w [u8]) -> impl Iterator<Item = usize> + 'w {
        let ends = |finder: &'w Finder<'static>| finder.find_iter(line).map(|at| at + finder.needle().len());
        self.0.iter().flat_map(ends)
    }
}

/// Returns whether the complete line is a record of foreign text: a listing of processes or files, an
/// environment variable, an audit record, or an access log entry.
pub(crate) fn is_record(message: &[u8]) -> bool {
    let text = message.trim_ascii_start();
    is_audit(text)
        || listings::is_listing(text)
        || is_crash(text)
        || is_access(text)
        || is_of_client(text)
        || is_request(text)
        // `kubectl logs --prefix` prints lines of a container.
        || text.starts_with(b"[pod/")
}

/// Returns whether a line is a row of cloud-init's tables of addresses and keys, which may contain the start
/// of another line.
pub(crate) fn is_table_of_cloud_init(line: &[u8]) -> bool {
    static MARK: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"ci-info: "));
    MARK.find(&line[..line.len().min(TABLE_WINDOW)]).is_some()
}

/// Returns the line with quoted text blanked; the other text keeps its position.
pub(crate) fn blanked(line: &[u8]) -> Cow<'_, [u8]> {
    if MARKS.as_ref().is_some_and(|marks| !marks.is_match(line)) {
        return Cow::Borrowed(line);
    }
    let mut blanked = Cow::Borrowed(line);
    let mut fill = |start: usize, end: usize, with: u8| {
        if end > start {
            blanked.to_mut()[start..end].fill(with);
        }
    };
    for start in NAMING.ends(line) {
        fill(start, line.len(), b' ');
    }
    for start in QUOTING.ends(line) {
        fill(start, quoted_end(line, start), b' ');
    }
    if is_denial(line) {
        for start in DENIED.ends(line) {
            fill(start, quoted_end(line, start), b' ');
        }
    }
    // The runtime itself also looks up programs; rules expect the names of these.
    let is_containers = memmem::find(line, b"container process").is_some();
    let executed = EXECUTED.ends(line).map(|start| (start, is_containers, false));
    for (start, is_containers, is_path) in
        executed.chain(MOUNTED.ends(line).map(|start| (start, false, true)))
    {
        let end = quoted_end(line, start);
        if is_containers || !is_path_or_name(&line[start..end], is_path) {
            fill(start, end, b' ');
            let again = repeated(line, end);
            fill(again.start, again.end, b' ');
        }
    }
    for start in PROCESSES.ends(line) {
        if let Some(name) = process_name(line, start) {
            fill(name.start, name.end, b' ');
        }
    }
    for start in DEVICES.ends(line) {
        let length = memmem::find(&line[start..], b".device").unwrap_or(line.len() - start);
        // Rules expect a word here.
        fill(start, start + length, b'_');
    }
    if let Some(start) = reason_end(line) {
        fill(start, line.len(), b' ');
    }
    blanked
}

/// Returns whether a quoted value is a program name or a system path, as rules expect, and not other text.
fn is_path_or_name(value: &[u8], is_path: bool) -> bool {
    let is_quote = |byte: &&u8| matches!(byte, b'\\' | b'"' | b'\'');
    let value = &value[value.iter().take_while(is_quote).count()..];
    let value = &value[..value.len() - value.iter().rev().take_while(is_quote).count()];
    let is_word = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"/._-+@".contains(byte);
    let is_system = SYSTEM_FOLDERS.iter().any(|folder| value.starts_with(folder.as_bytes()));
    value.iter().all(is_word) && (is_system || !is_path && !value.contains(&b'/'))
}

/// Returns the range where the program that failed to start is repeated:
/// `stat NAME: no such file or directory`.
fn repeated(line: &[u8], after: usize) -> Range<usize> {
    const STAT: &[u8] = b": stat ";
    let rest = &line[after..];
    // A few closing quotes and escapes may precede it.
    let near = &rest[..rest.len().min(16)];
    let start = match memmem::find(near, STAT) {
        Some(at) => at + STAT.len(),
        // Redaction may have taken the word for the value of a name such as "password".
        None => match memmem::find(near, REDACTED) {
            Some(at) => at,
            None => return 0..0,
        },
    };
    let end = memmem::rfind(rest, b": no such file").filter(|end| *end > start).unwrap_or(rest.len());
    after + start..after + end
}

/// Returns the name in `123 (NAME)`, `123 ('NAME')` or `"NAME"`, unless it is a usual program.
fn process_name(line: &[u8], start: usize) -> Option<Range<usize>> {
    let rest = &line[start..];
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (open, close) = match rest.get(digits..)? {
        [b' ', b'(', b'\'', ..] if digits > 0 => (digits + 3, b'\''),
        [b' ', b'(', ..] if digits > 0 => (digits + 2, b')'),
        [b'"', ..] if digits == 0 => (1, b'"'),
        _ => return None,
    };
    // A name has 15 bytes, any of which may be the closing character.
    let name = rest.get(open..)?;
    let length = name.iter().take(COMM + 1).rposition(|byte| *byte == close)?;
    let name = &name[..length];
    let is_word = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_.".contains(byte);
    let is_usual = WORDS.usual_programs.iter().any(|program| name.starts_with(program.as_bytes()));
    let is_usual = is_usual && name.iter().all(is_word);
    (!is_usual).then_some(start + open..start + open + length)
}

/// Returns the start of a registry's text: `unexpected status from GET request to https://…: 403 Forbidden`,
/// after `Forbidden`.
fn reason_end(line: &[u8]) -> Option<usize> {
    let url = memmem::find(line, REQUEST)? + REQUEST.len();
    let status = url + memmem::find(&line[url..], b": ")? + 2;
    let code = line.get(status..status + 4)?;
    if !(code[..3].iter().all(u8::is_ascii_digit) && code[3] == b' ') {
        return None;
    }
    let known = WORDS.status_texts.iter().find(|known| line[status..].starts_with(known.as_bytes()));
    Some(status + known.map_or(code.len(), String::len))
}

/// Returns the end of the value that starts here.
///
/// That is its closing quote, with as many backslashes as the opening one, or the line end if it is unquoted.
/// Redaction may have replaced the closing quote together with a secret, so after its marker in a value the
/// rest of the line is quoted.
fn quoted_end(line: &[u8], start: usize) -> usize {
    let rest = &line[start..];
    let escapes = rest.iter().take_while(|byte| **byte == b'\\').count();
    let Some(quote @ (b'"' | b'\'')) = rest.get(escapes).copied() else { return line.len() };
    let mut backslashes = 0;
    for (at, byte) in rest.iter().enumerate().skip(escapes + 1) {
        match byte {
            b'\\' => backslashes += 1,
            _ if *byte == quote && backslashes <= escapes => {
                let is_redacted = memmem::find(&rest[..at], REDACTED).is_some();
                return if is_redacted { line.len() } else { start + at };
            }
            _ => backslashes = 0,
        }
    }
    line.len()
}

/// Returns whether a line is `type=EXECVE msg=audit(1700000000.123:45): …`, with or without a head.
///
/// The kernel's own denials are excluded: it encodes foreign names in them.
fn is_audit(text: &[u8]) -> bool {
    if DENIALS.iter().any(|denial| text.starts_with(denial)) {
        return false;
    }
    text.starts_with(b"type=") && memmem::find(text, b" msg=audit(").is_some()
        || text.starts_with(b"audit: ")
        || text.starts_with(b"audit(")
        || text.starts_with(b"EXECVE ")
        || text.starts_with(b"USER_CMD ")
}

/// Returns the offset of a denial's kind, if the message is one:
/// `audit: type=1400 audit(1767323340.123:45): apparmor="DENIED" …`. The text after it contains names that
/// users chose.
pub(crate) fn denial_kind(message: &[u8]) -> Option<usize> {
    const STAMP: &[u8] = b"): ";
    /// Maximum length of a record's time and number.
    const WINDOW: usize = 80;
    let others = [&b"AVC "[..]];
    let begin = DENIALS.iter().chain(&others).find(|denial| message.starts_with(denial))?;
    let window = &message[..message.len().min(WINDOW)];
    Some(memmem::find(window, STAMP).map_or(begin.len(), |at| at + STAMP.len()))
}

fn is_denial(line: &[u8]) -> bool {
    DENIALS.iter().chain(&[&b": AVC "[..]]).any(|denial| memmem::find(line, denial).is_some())
}

/// Returns whether a kernel line contains the names of a process and its files, or of a device that anyone
/// can plug in.
fn is_crash(text: &[u8]) -> bool {
    text.starts_with(b"traps: ")
        || text.starts_with(b"process '")
        || text.starts_with(b"input: ")
        || memmem::find(text, b"]: segfault at ").is_some()
        || text.starts_with(b"device ") && memmem::find(text, b" promiscuous mode").is_some()
}

/// Returns whether a server reports a client's TLS handshake, which any machine on the network can cause.
fn is_of_client(text: &[u8]) -> bool {
    const REPORTS: [&[u8]; 2] = [b"http: TLS handshake error from ", b"http2: server"];
    // A problem of the server itself.
    const OWN: &[u8] = b"no serving certificate available";
    let is_report = REPORTS.iter().any(|report| memmem::find(text, report).is_some());
    is_report && memmem::find(text, OWN).is_none()
}

/// Returns whether a server reports a rejected client.
///
/// The client may be another member of the cluster, or any machine that can connect.
pub(crate) fn names_client(text: &[u8]) -> bool {
    let has = |words: &[u8]| memmem::find(text, words).is_some();
    has(b"rejected connection")
        || has(b"request cluster ID mismatch")
        || has(b"Unable to authenticate the request") && has(b"x509: ")
}

/// Returns whether the API server or the kubelet reports a request in the client's words.
fn is_request(text: &[u8]) -> bool {
    const REPORTS: [&[u8]; 9] = [
        b"\"audit.k8s.io/",
        b"Timeout or abort while handling",
        b"ost-timeout activity",
        b"RBAC DENY",
        b"RBAC: ",
        b"\"Forbidden\" URI=",
        b"Forbidden (user=",
        b"logging error output: ",
        b"\"Impersonating\" user=",
    ];
    REPORTS.iter().any(|report| memmem::find(text, report).is_some())
}

/// `192.0.2.1 - - [10/Oct/2026:13:55:36 +0000] "GET / HTTP/1.1" 200 …`
fn is_access(text: &[u8]) -> bool {
    let head = &text[..text.len().min(256)];
    let Some(at) = memmem::find(head, b" [") else { return false };
    let date = &head[at + 2..];
    date.get(2) == Some(&b'/')
        && date.get(6) == Some(&b'/')
        && memmem::find(date, b"] \"").is_some()
        && date.iter().take(2).all(u8::is_ascii_digit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_foreign_text_are_recognized() {
        for line in [
            "type=EXECVE msg=audit(1700000000.123:45): argc=2 a0=\"x\"",
            "HOSTNAME=Node became ready",
            "export FOO='Node became ready'",
            "-rw-r--r-- 1 alice alice 0 Jan  1 00:00 Node became ready",
            "drwxr-xr-x. 2 root root 4096 Jan 1 00:00 x",
            "alice     1234  0.0  0.1  12345  6789 ?  Ss   10:00   0:00 Node became ready",
            "alice     1234     1  0 10:00 ?        00:00:00 Node became ready",
            "   1234 ?        Ss     0:00 Node became ready",
            "192.0.2.1 - - [10/Oct/2026:13:55:36 +0000] \"GET /x HTTP/1.1\" 200 1 \"-\" \"Node became ready\"",
            "Description=Node became ready",
            "new_host_name='Node became ready'",
            "declare -x a=\"Node became ready\"",
            "/home/alice/Node became ready",
            "  131074   4 -rw-r--r--   1 alice alice   0 Jan  2 03:09 /srv/Node became ready",
            "Unmounted home-alice-x.mount - /home/alice/Node became ready.",
            "home-alice-x.mount loaded active mounted /home/alice/Node became ready",
            "traps: x[1] general protection fault in Node became ready[3,4]",
            "process '/home/alice/Node became ready' started with executable stack",
            "input: Node became ready as /devices/x",
        ] {
            assert!(is_record(line.as_bytes()), "{line}");
        }
        for line in [
            "[preflight] Running pre-flight checks",
            "error execution phase preflight: x",
            "msg=\"x\" level=info",
            "- The kubelet is not running",
            "E0102 03:04:05.678901    1234 server.go:1] x",
            "{\"level\":\"info\"}",
            "curl: (7) Failed to connect",
            "/var/lib/cloud/instance/scripts/part-001: line 3: kubeadm: command not found",
            "boot.mount: Mount process exited, code=exited, status=32/n/a",
            "Dependency failed for boot.mount - /boot.",
        ] {
            assert!(!is_record(line.as_bytes()), "{line}");
        }
    }

    #[test]
    fn quoted_text_is_blanked_and_the_rest_is_not() {
        let check = |line: &str, kept: &[&str], gone: &[&str]| {
            let blanked = String::from_utf8(blanked(line.as_bytes()).into_owned()).unwrap();
            assert_eq!(blanked.len(), line.len());
            assert!(kept.iter().all(|text| blanked.contains(text)), "{blanked}");
            assert!(!gone.iter().any(|text| blanked.contains(text)), "{blanked}");
        };
        check(
            r#""Probe failed" pod="default/x" output="Get \"http://10.0.0.1\": SECRET" err="kept""#,
            &["Probe failed", "err=\"kept\""],
            &["SECRET"],
        );
        check(r#""HTTP" verb="GET" URI="/SECRET" userAgent="SECRET" resp=200"#, &["resp=200"], &["SECRET"]);
        check(r#"failed: exec: \"A SECRET\": not found in $PATH"#, &["not found in $PATH"], &["SECRET"]);
        check(r#"exec: "crictl": not found in $PATH"#, &["crictl"], &[]);
        check("Invalid user SECRET from 192.0.2.1", &["Invalid user "], &["SECRET"]);
        check("dhcp4 (eth0): option host_name  => 'SECRET'", &["dhcp4"], &["SECRET"]);
        check(
            r#"unable to start container process: exec: \"SECRET\": stat SECRET: no such file or directory"#,
            &["no such file or directory"],
            &["SECRET"],
        );
        check(
            r#"exec: \"x password\": ***<PASSWORD:0123>*** SECRET: no such file or directory"#,
            &["no such file or directory"],
            &["SECRET"],
        );
        check(r#"to rootfs at \"/etc/resolv.conf\": not a directory"#, &["/etc/resolv.conf"], &[]);
        check("Killed process 12 (SECRET) total-vm:1kB", &["Killed process 12 (", "total-vm"], &["SECRET"]);
        check("Killed process 12 (kube-apiserver) total-vm:1kB", &["(kube-apiserver)"], &[]);
        check("GET request to https://x/v2/: 403 Forbidden: SECRET", &["403 Forbidden"], &["SECRET"]);
        check("HEAD request to https://x/v2/: 418 SECRET", &["418"], &["SECRET"]);
        check(
            "audit: type=1400 apparmor=\"DENIED\" name=\"SECRET\" pid=1",
            &["DENIED", "pid=1"],
            &["SECRET"],
        );
        check(r"dev-disk-by\x2dlabel-SECRET.device: Job timed out", &[".device: Job"], &["SECRET"]);
        check(r#"output="x ***<TOKEN:0123>*** err="SECRET" pod="default/web""#, &["output="], &["SECRET"]);
        check("tmpfs: Unknown parameter 'SECRET'", &["tmpfs"], &["SECRET"]);
        check(r#"{"server-name":"SECRET","error":"EOF"}"#, &["EOF"], &["SECRET"]);
        assert!(matches!(super::blanked(b"nothing quoted"), Cow::Borrowed(_)));
    }
}
