//! Text inside a line that its writer only quotes: user names, URLs, headers, what a container printed. The author of that text must
//! not choose the verdict, so it is blanked before a line is compared with the rules.

use std::borrow::Cow;

use memchr::memmem;

/// Fields whose value a client, a container or a user chose.
const QUOTING_KEYS: [&[u8]; 14] = [
    b"output=",
    b"URI=",
    b"userAgent=",
    b"user-agent=",
    b"user_agent=",
    b"username=",
    b"hostname=",
    b"cmdline=",
    b"COMMAND=",
    b"\"userAgent\":",
    b"\"user-agent\":",
    b"\"user_agent\":",
    b"\"requestURI\":",
    b"\"hostname\":",
];

/// After it, Go quotes the program that could not be started.
const EXEC: &[u8] = b"exec: ";

/// Words followed only by a name that a remote party chose. The programs do not quote it reliably.
const NAMING_WORDS: [&[u8]; 9] = [
    b"nvalid user ",
    b"ostname to ",
    b"ostname set to ",
    b"host name to ",
    b"ostname is ",
    b"host name is ",
    b"'hostname', ",
    b"option host_name ",
    b"option domain_name ",
];

/// Whether the whole line is a record of text that others chose: a listing of processes or files, a variable of an environment, an
/// audit record, an entry of an access log.
pub(crate) fn is_record(message: &[u8]) -> bool {
    let text = message.trim_ascii_start();
    is_audit(text) || is_variable(text) || is_file(text) || is_process(text) || is_access(text)
}

/// The line with quoted text blanked; what is left stands where it stood.
pub(crate) fn blanked(line: &[u8]) -> Cow<'_, [u8]> {
    let mut blanked = Cow::Borrowed(line);
    let mut blank = |start: usize, end: usize| {
        if end > start {
            blanked.to_mut()[start..end].fill(b' ');
        }
    };
    for word in NAMING_WORDS {
        if let Some(at) = memmem::find(line, word) {
            blank(at + word.len(), line.len());
        }
    }
    for key in QUOTING_KEYS {
        for start in memmem::find_iter(line, key).map(|at| at + key.len()) {
            blank(start, quoted_end(line, start));
        }
    }
    for start in memmem::find_iter(line, EXEC).map(|at| at + EXEC.len()) {
        let end = quoted_end(line, start);
        // The name of a missing program is what a rule looks for; a text is none.
        if line[start..end].contains(&b' ') {
            blank(start, end);
        }
    }
    blanked
}

/// Where the value that begins here ends: at its closing quote, with as many backslashes before it as the opening one has, or at the
/// end of the line if it is not quoted.
fn quoted_end(line: &[u8], start: usize) -> usize {
    let rest = &line[start..];
    let escapes = rest.iter().take_while(|byte| **byte == b'\\').count();
    let Some(quote @ (b'"' | b'\'')) = rest.get(escapes).copied() else { return line.len() };
    let mut backslashes = 0;
    for (at, byte) in rest.iter().enumerate().skip(escapes + 1) {
        match byte {
            b'\\' => backslashes += 1,
            _ if *byte == quote && backslashes <= escapes => return start + at,
            _ => backslashes = 0,
        }
    }
    line.len()
}

/// `type=EXECVE msg=audit(1700000000.123:45): …`, with or without a head. The kernel's own denials are none: it encodes the names
/// in them that others chose.
fn is_audit(text: &[u8]) -> bool {
    const DENIALS: [&[u8]; 4] = [b"type=AVC ", b"type=1400 ", b"audit: type=1400 ", b"audit: AVC "];
    if DENIALS.iter().any(|denial| text.starts_with(denial)) {
        return false;
    }
    text.starts_with(b"type=") && memmem::find(text, b" msg=audit(").is_some()
        || text.starts_with(b"audit: ")
        || text.starts_with(b"audit(")
        || text.starts_with(b"EXECVE ")
        || text.starts_with(b"USER_CMD ")
}

/// `NAME=value`, `export NAME=value`, `declare -x NAME="value"`, `Environment=NAME=value`.
fn is_variable(text: &[u8]) -> bool {
    let text =
        [&b"export "[..], b"declare -x "].iter().find_map(|word| text.strip_prefix(*word)).unwrap_or(text);
    // klog and logfmt begin with fields, too: theirs are written in small letters.
    let name = text
        .iter()
        .take_while(|byte| byte.is_ascii_uppercase() || **byte == b'_' || byte.is_ascii_digit())
        .count();
    name > 1 && text.get(name) == Some(&b'=')
        || text.starts_with(b"Environment=")
        || text.starts_with(b"Description=")
}

/// `-rw-r--r-- 1 root root 0 Jan  1 00:00 name`
fn is_file(text: &[u8]) -> bool {
    matches!(text.first(), Some(b'-' | b'd' | b'l' | b'b' | b'c' | b'p' | b's'))
        && text.get(1..10).is_some_and(|mode| mode.iter().all(|byte| b"rwxsStT-".contains(byte)))
        && text.get(10).is_some_and(|byte| matches!(byte, b' ' | b'.' | b'+'))
}

/// `root  1234  0.0  0.1 …` of `ps aux`, `root  1234  1  0 10:00 ?  00:00:00 …` of `ps -ef`, `1234 ?  Ss  0:00 …` of `ps ax`.
fn is_process(text: &[u8]) -> bool {
    let words: Vec<&[u8]> =
        text.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()).take(10).collect();
    let number = |at: usize| words.get(at).is_some_and(|word| word.iter().all(u8::is_ascii_digit));
    let share = |at: usize| {
        words.get(at).is_some_and(|word| {
            word.iter().all(|byte| byte.is_ascii_digit() || *byte == b'.') && word.contains(&b'.')
        })
    };
    let terminal = |at: usize| {
        words
            .get(at)
            .is_some_and(|word| *word == b"?" || word.starts_with(b"pts/") || word.starts_with(b"tty"))
    };
    number(1) && share(2) && share(3) && words.len() > 9
        || number(1) && number(2) && number(3) && terminal(5)
        || number(0) && terminal(1) && words.get(3).is_some_and(|word| word.contains(&b':'))
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
        assert!(matches!(super::blanked(b"nothing quoted"), Cow::Borrowed(_)));
    }
}
