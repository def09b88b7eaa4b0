//! Listings of variables, files, processes and units: users choose the names in them.

use crate::foreign::SYSTEM_FOLDERS;

/// Fields with which lines of logs begin, as variables of an environment do.
const LOGFMT_FIELDS: [&[u8]; 13] = [
    b"caller",
    b"component",
    b"err",
    b"error",
    b"level",
    b"logger",
    b"lvl",
    b"msg",
    b"source",
    b"time",
    b"timestamp",
    b"ts",
    b"type",
];

/// Where users create files and mount file systems.
const USER_FOLDERS: [&str; 7] =
    ["/home/", "/media/", "/run/media/", "/run/user/", "/tmp/", "/var/tmp/", "/dev/shm/"];

/// Whether a line is a row of a listing, or a variable of an environment.
pub(crate) fn is_listing(text: &[u8]) -> bool {
    is_variable(text)
        || is_file(text)
        || is_path(text)
        || is_mount(text)
        || is_process(text)
        || is_unit_state(text)
}

/// `NAME=value`, `export NAME=value`, `declare -x NAME="value"`, `Environment=NAME=value`.
fn is_variable(text: &[u8]) -> bool {
    // The DHCP client gives its hooks variables of small letters.
    if [&b"declare -x "[..], b"new_", b"old_"].iter().any(|word| text.starts_with(word)) {
        return text.contains(&b'=');
    }
    let text = text.strip_prefix(b"+ ").unwrap_or(text);
    let text = text.strip_prefix(b"export ").unwrap_or(text);
    let name = text.iter().take_while(|byte| byte.is_ascii_alphanumeric() || **byte == b'_').count();
    // Fields of klog mix small and capital letters.
    let is_mixed = |letters: &[u8]| {
        letters.iter().any(u8::is_ascii_lowercase) && letters.iter().any(u8::is_ascii_uppercase)
    };
    let is_field = LOGFMT_FIELDS.contains(&&text[..name]) || is_mixed(&text[..name]);
    name > 1 && !is_field && text.get(name) == Some(&b'=')
        || text.starts_with(b"Environment=")
        || text.starts_with(b"Description=")
}

/// `-rw-r--r-- 1 root root 0 Jan  1 00:00 name`, with the numbers of `find -ls` before it.
fn is_file(text: &[u8]) -> bool {
    let digits_or_space = |byte: &&u8| byte.is_ascii_digit() || **byte == b' ';
    let text = &text[text.iter().take_while(digits_or_space).count()..];
    matches!(text.first(), Some(b'-' | b'd' | b'l' | b'b' | b'c' | b'p' | b's'))
        && text.get(1..10).is_some_and(|mode| mode.iter().all(|byte| b"rwxsStT-".contains(byte)))
        && text.get(10).is_some_and(|byte| matches!(byte, b' ' | b'.' | b'+'))
}

/// `/home/alice/name` of `find`, and other paths without a message behind them.
fn is_path(text: &[u8]) -> bool {
    let path = text.split(|byte| *byte == b' ').next().unwrap_or_default();
    let is_in_system = SYSTEM_FOLDERS.iter().any(|folder| path.starts_with(folder.as_bytes()));
    // `/usr/bin/env: …` is a message of that program.
    let is_program = path.ends_with(b":") && is_in_system && !path.contains(&b'[');
    let is_alone = [&b"/"[..], b"./", b"home/"].iter().any(|start| path.starts_with(start)) && !is_program;
    is_alone || USER_FOLDERS.iter().any(|folder| text.starts_with(folder.as_bytes()))
}

/// A line of the service manager about a file system that a user mounted, which is described by its path:
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
    // A row of a table, such as `ps -l` and `top` print.
    let is_number = |word: &&&[u8]| word.iter().all(|byte| byte.is_ascii_digit() || *byte == b'.');
    let numbers = words.iter().take(6).filter(is_number).count();
    // Sessions of `who` and `last`.
    numbers > 2
        || terminal(1) && words.len() > 3
        || number(1) && share(2) && share(3) && words.len() > 9
        || number(1) && number(2) && number(3) && terminal(5)
        || number(0) && terminal(1) && words.get(3).is_some_and(|word| word.contains(&b':'))
}

/// What `systemctl status` prints about a unit, with its description and its processes: `● run-1.service - text`, `├─12 text`.
fn is_unit_state(text: &[u8]) -> bool {
    const STARTS: [&str; 7] = ["● ", "○ ", "× ", "├", "└", "|-", "`-"];
    STARTS.iter().any(|start| text.starts_with(start.as_bytes())) || text.starts_with(b"Status: \"")
}
