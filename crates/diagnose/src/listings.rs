//! Listings of variables, files, processes and units: users choose the names in them.

use crate::foreign::SYSTEM_FOLDERS;
use crate::words::WORDS;

/// Directories in which users create files and mount file systems.
const USER_FOLDERS: [&str; 7] =
    ["/home/", "/media/", "/run/media/", "/run/user/", "/tmp/", "/var/tmp/", "/dev/shm/"];

/// Returns whether a line is a row of a listing, or an environment variable.
pub(crate) fn is_listing(text: &[u8]) -> bool {
    is_variable(text)
        || is_file(text)
        || is_path(text)
        || is_mount(text)
        || is_process(text)
        || is_unit_state(text)
        || is_account(text)
}

/// Returns whether a script's output line is not a message.
///
/// It may be a row of a table or a numbered list, a traced command or header, or an object member. Examples:
/// `lsof`, `docker ps`, `pgrep -a`, `du`, `sha256sum`, `getent passwd`, `git log`, `set -x`, `curl -v`,
/// `kubectl get -o json`.
pub(crate) fn is_row(text: &[u8]) -> bool {
    let text = text.trim_ascii();
    // systemd's status on a console, and structured entries.
    if [&b"[  OK  ] "[..], b"{", b"time=", b"level=", b"msg="].iter().any(|start| text.starts_with(start)) {
        return false;
    }
    is_of_columns(text) || is_counted(text) || is_traced(text) || is_unit_row(text)
}

/// Returns whether a line has at least three columns separated by tabs or several spaces, apart from a log's
/// level and logger.
fn is_of_columns(text: &[u8]) -> bool {
    const LEVELS: [&[u8]; 6] = [b"DEBUG", b"INFO", b"WARN", b"ERROR", b"FATAL", b"PANIC"];
    let first = text.split(u8::is_ascii_whitespace).next().unwrap_or_default().to_ascii_uppercase();
    if LEVELS.iter().any(|level| first.starts_with(level)) {
        return false;
    }
    let is_gap = |three: &&[u8]| {
        !three[0].is_ascii_whitespace()
            && (three[1] == b'\t' || three[1] == b' ' && three[2].is_ascii_whitespace())
    };
    text.windows(3).filter(is_gap).count() > 1
}

/// Returns whether a line starts with a number, a size or a hash: `1234 nginx`, `4.0K\tname`,
/// `3f2a91bc name`.
fn is_counted(text: &[u8]) -> bool {
    const HASH: usize = 7;
    let length = text.iter().take_while(|byte| !byte.is_ascii_whitespace()).count();
    let word = &text[..length];
    let size =
        word.strip_suffix(b"K").or_else(|| word.strip_suffix(b"M")).or_else(|| word.strip_suffix(b"G"));
    let number = size.unwrap_or(word);
    let is_number = number.first().is_some_and(u8::is_ascii_digit)
        && number.iter().all(|byte| byte.is_ascii_digit() || *byte == b'.');
    let is_hash =
        length >= HASH && word.iter().all(u8::is_ascii_hexdigit) && word.iter().any(u8::is_ascii_digit);
    let is_status = || WORDS.status_texts.iter().any(|reason| text.starts_with(reason.as_bytes()));
    // klog's `1234 server.go:1] text`.
    let is_place = |place: &[u8]| place.ends_with(b"]") && place.contains(&b':') && !place.contains(&b'[');
    let is_klog = || text[length..].split(u8::is_ascii_whitespace).nth(1).is_some_and(is_place);
    length < text.len() && (is_number || is_hash) && !is_status() && !is_klog()
}

/// `+ kubeadm init`, `> User-Agent: x`, `"message": "x"`
fn is_traced(text: &[u8]) -> bool {
    let is_member = || {
        let name = text.strip_prefix(b"\"")?;
        let end =
            name.iter().take_while(|byte| byte.is_ascii_alphanumeric() || b"-_./".contains(byte)).count();
        name[end..].starts_with(b"\": ").then_some(())
    };
    [&b"+ "[..], b"++ ", b"< ", b"> "].iter().any(|mark| text.starts_with(mark)) || is_member().is_some()
}

/// `alice:x:1000:1000:name:/home/alice:/bin/bash`
fn is_account(text: &[u8]) -> bool {
    let mut fields = text.splitn(5, |byte| *byte == b':').skip(1);
    let is_number =
        |field: Option<&[u8]>| field.is_some_and(|id| !id.is_empty() && id.iter().all(u8::is_ascii_digit));
    let has_password = fields.next().is_some_and(|field| matches!(field, b"x" | b"*" | b"!"));
    has_password && is_number(fields.next()) && is_number(fields.next())
}

/// `web.service  loaded active running description`
fn is_unit_row(text: &[u8]) -> bool {
    let mut words = text.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()).skip(1);
    words.next() == Some(b"loaded")
        && matches!(words.next(), Some(b"active" | b"inactive" | b"failed" | b"activating"))
}

/// `NAME=value`, `export NAME=value`, `declare -x NAME="value"`, `Environment=NAME=value`.
fn is_variable(text: &[u8]) -> bool {
    // The DHCP client passes lower-case variables to its hooks.
    if [&b"declare -x "[..], b"new_", b"old_"].iter().any(|word| text.starts_with(word)) {
        return text.contains(&b'=');
    }
    let text = text.strip_prefix(b"+ ").unwrap_or(text);
    let text = text.strip_prefix(b"export ").unwrap_or(text);
    let name = text.iter().take_while(|byte| byte.is_ascii_alphanumeric() || **byte == b'_').count();
    // Fields of klog have mixed case.
    let is_mixed = |letters: &[u8]| {
        letters.iter().any(u8::is_ascii_lowercase) && letters.iter().any(u8::is_ascii_uppercase)
    };
    let is_field =
        WORDS.logfmt_fields.iter().any(|field| field.as_bytes() == &text[..name]) || is_mixed(&text[..name]);
    name > 1 && !is_field && text.get(name) == Some(&b'=')
        || text.starts_with(b"Environment=")
        || text.starts_with(b"Description=")
}

/// `-rw-r--r-- 1 root root 0 Jan  1 00:00 name`, optionally with the numbers of `find -ls` before it.
fn is_file(text: &[u8]) -> bool {
    let digits_or_space = |byte: &&u8| byte.is_ascii_digit() || **byte == b' ';
    let text = &text[text.iter().take_while(digits_or_space).count()..];
    matches!(text.first(), Some(b'-' | b'd' | b'l' | b'b' | b'c' | b'p' | b's'))
        && text.get(1..10).is_some_and(|mode| mode.iter().all(|byte| b"rwxsStT-".contains(byte)))
        && text.get(10).is_some_and(|byte| matches!(byte, b' ' | b'.' | b'+'))
}

/// `/home/alice/name` from `find`, and other paths without a message after them.
fn is_path(text: &[u8]) -> bool {
    let path = text.split(|byte| *byte == b' ').next().unwrap_or_default();
    let is_in_system = SYSTEM_FOLDERS.iter().any(|folder| path.starts_with(folder.as_bytes()));
    // `/usr/bin/env: …` is a message of that program.
    let is_program = path.ends_with(b":") && is_in_system && !path.contains(&b'[');
    let is_alone = [&b"/"[..], b"./", b"home/"].iter().any(|start| path.starts_with(start)) && !is_program;
    is_alone || USER_FOLDERS.iter().any(|folder| text.starts_with(folder.as_bytes()))
}

/// Returns whether a service manager line describes a user's mount by its path:
/// `Unmounted home-alice-x.mount - /home/alice/x.`, `home-alice-x.mount loaded active mounted /home/alice/x`.
fn is_mount(text: &[u8]) -> bool {
    text.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()).take(3).any(|word| {
        let word = word.strip_suffix(b":").unwrap_or(word);
        let is_of_user = |folder: &&str| {
            let unit = folder[1..].replace('/', "-");
            word.starts_with(unit.as_bytes()) && word.ends_with(b".mount")
        };
        USER_FOLDERS.iter().any(|folder| word.starts_with(folder.as_bytes()) || is_of_user(folder))
    })
}

/// `root  1234  0.0  0.1 …` from `ps aux`, `root  1234  1  0 10:00 ?  00:00:00 …` from `ps -ef`,
/// `1234 ?  Ss  0:00 …` from `ps ax`.
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
    // A table row, as in `ps -l` and `top`.
    let is_number = |word: &&&[u8]| word.iter().all(|byte| byte.is_ascii_digit() || *byte == b'.');
    let numbers = words.iter().take(6).filter(is_number).count();
    // Sessions in `who` and `last`.
    numbers > 2
        || terminal(1) && words.len() > 3
        || number(1) && share(2) && share(3) && words.len() > 9
        || number(1) && number(2) && number(3) && terminal(5)
        || number(0) && terminal(1) && words.get(3).is_some_and(|word| word.contains(&b':'))
}

/// Returns whether a line is from `systemctl status`, with a unit's description or processes:
/// `● run-1.service - text`, `├─12 text`.
fn is_unit_state(text: &[u8]) -> bool {
    const STARTS: [&str; 7] = ["● ", "○ ", "× ", "├", "└", "|-", "`-"];
    STARTS.iter().any(|start| text.starts_with(start.as_bytes())) || text.starts_with(b"Status: \"")
}
