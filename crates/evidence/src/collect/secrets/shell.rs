//! Secrets in shell scripts and commands: assignments, flags, here-documents and piped passwords.

use landfall_redact::Kind;

use super::values::Values;
use super::{encoded, lines, names, urls};

/// Maximum number of words per command line; longer lines are data.
const MAX_WORDS: usize = 4096;

/// Programs whose `-p` is a password. For container tools it is a port, except in a login command.
const LOGINS: [&str; 9] =
    ["buildah", "docker", "helm", "nerdctl", "oc", "oras", "podman", "skopeo", "sshpass"];

/// Programs whose `-p` has the password in the same word.
const DATABASES: [&str; 4] = ["mariadb", "mysql", "mysqladmin", "mysqldump"];

/// A here-document in progress.
struct HereDocument<'t> {
    end: String,
    is_indented: bool,
    command: &'t str,
    body: String,
}

/// Searches a script or any other text line by line.
pub(super) fn script(text: &str, values: &mut Values) {
    let text = lines::joined(text);
    let mut here: Option<HereDocument<'_>> = None;
    for line in text.lines() {
        if let Some(document) = &mut here {
            let candidate = if document.is_indented { line.trim_start_matches('\t') } else { line };
            if candidate.trim_end() != document.end {
                document.body.push_str(line);
                document.body.push('\n');
                continue;
            }
            if let Some(document) = here.take() {
                document.search(values);
            }
            continue;
        }
        lines::search(line, values);
        urls::search(line, values);
        arguments(&words(line), values);
        here = begin(line);
    }
    if let Some(document) = here {
        document.search(values);
    }
}

/// Returns the here-document that starts on a line.
fn begin(line: &str) -> Option<HereDocument<'_>> {
    let (_, rest) = line.split_once("<<")?;
    if rest.starts_with('<') {
        return None;
    }
    let (is_indented, rest) = rest.strip_prefix('-').map_or((false, rest), |rest| (true, rest));
    let end: String = rest
        .trim_start()
        .trim_start_matches(['"', '\'', '\\'])
        .chars()
        .take_while(|c| c.is_ascii_alphanumeric() || "_-.".contains(*c))
        .collect();
    (!end.is_empty()).then(|| HereDocument { end, is_indented, command: line, body: String::new() })
}

// === impl HereDocument ===

impl HereDocument<'_> {
    fn search(self, values: &mut Values) {
        let words = words(self.command);
        if words.iter().any(|word| word == "chpasswd") {
            logins(&self.body, values);
        }
        super::content(target(&words), self.body.into_bytes(), values);
    }
}

/// Returns the file that a command writes: `> FILE`, `tee FILE`.
fn target(words: &[String]) -> Option<&str> {
    let pairs = words.windows(2).filter(|pair| pair[0].starts_with('>') || pair[0] == "tee");
    let mut names = pairs.map(|pair| pair[1].as_str()).filter(|name| name.starts_with('/'));
    names.next()
}

/// `user:password` on each line.
pub(super) fn logins(text: &str, values: &mut Values) {
    for (_, password) in text.lines().filter_map(|line| line.trim().split_once(':')) {
        values.secret(Kind::PASSWORD, password);
    }
}

/// Searches the words of a command.
pub(super) fn arguments<S: AsRef<str>>(words: &[S], values: &mut Values) {
    let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
    let runs = |programs: &[&str]| {
        words.iter().any(|word| programs.contains(&word.rsplit('/').next().unwrap_or(word)))
    };
    let is_login = runs(&LOGINS) && (words.contains(&"login") || runs(&["sshpass"]));
    let is_database = runs(&DATABASES);
    for (place, word) in words.iter().enumerate() {
        let next = words.get(place + 1).copied().unwrap_or_default();
        match word.strip_prefix('-') {
            Some(flag) => {
                let flag = flag.trim_start_matches('-');
                if let Some((name, value)) = flag.split_once('=') {
                    values.field(name, value);
                    assignment(value, values);
                } else if !next.starts_with('-') && names::kind(flag).is_some() {
                    values.field(flag, next);
                }
                match *word {
                    "-u" | "--user" | "--proxy-user" | "-U" => {
                        let password = next.split_once(':').map_or("", |(_, password)| password);
                        values.secret(Kind::PASSWORD, password);
                    }
                    "-H" | "--header" => header(next, values),
                    "-p" if is_login => values.secret(Kind::PASSWORD, next),
                    _ if word.starts_with("-p") && !word.starts_with("--") && (is_database || is_login) => {
                        values.secret(Kind::PASSWORD, &word[2..]);
                    }
                    _ => {}
                }
            }
            None => assignment(word, values),
        }
        let is_echo = *word == "echo" || *word == "printf";
        if is_echo {
            echoed(&words[place + 1..], values);
        }
        // `chpasswd <<< user:password`.
        if *word == "<<<" && runs(&["chpasswd"]) {
            logins(next, values);
        }
    }
}

/// `NAME=value`, including nested assignments in the value.
fn assignment(word: &str, values: &mut Values) {
    let mut rest = word;
    for _ in 0..3 {
        let Some((name, value)) = rest.split_once('=') else { break };
        let name = name.rsplit(',').next().unwrap_or(name);
        values.field(name, value);
        rest = value;
    }
    // Mount options: `username=me,password=…`.
    if word.contains(',') {
        for (name, value) in word.split(',').filter_map(|part| part.split_once('=')) {
            values.field(name, value);
        }
    }
    if let Some((name, value)) = word.split_once(':').filter(|(name, _)| !name.contains('/')) {
        if name.eq_ignore_ascii_case("authorization") {
            header(word, values);
        } else if !value.starts_with("//") && names::kind(name).is_some() {
            values.field(name, value);
        }
    }
}

/// `Authorization: SCHEME CREDENTIALS`, and headers whose names end in `token` and similar words.
pub(super) fn header(text: &str, values: &mut Values) {
    let Some((name, value)) = text.split_once(':') else { return };
    header_field(name, value, values);
}

/// Like [`header`], with name and value separate.
pub(super) fn header_field(name: &str, value: &str, values: &mut Values) {
    let value = value.trim();
    if !name.to_ascii_lowercase().ends_with("authorization") {
        return values.field(name.trim(), value);
    }
    let (scheme, credentials) = value.split_once(' ').unwrap_or(("", value));
    values.secret(Kind::PASSWORD, credentials);
    if scheme.eq_ignore_ascii_case("basic") {
        basic(credentials, values);
    }
}

/// Base64 of `user:password`.
pub(super) fn basic(credentials: &str, values: &mut Values) -> bool {
    let decoded = encoded::base64(credentials.as_bytes()).and_then(|bytes| String::from_utf8(bytes).ok());
    let Some((_, password)) = decoded.as_deref().and_then(|text| text.split_once(':')) else { return false };
    values.secret(Kind::PASSWORD, password);
    true
}

/// Finds secrets that `echo` writes to `chpasswd`, `passwd --stdin`, `--password-stdin` or a secret file.
fn echoed(words: &[&str], values: &mut Values) {
    let end = words.iter().position(|word| ["|", ">", ">>"].contains(word)).unwrap_or(words.len());
    let (said, rest) = words.split_at(end);
    let Some(last) = said.last() else { return };
    let receiver = rest.iter().take_while(|word| **word != ";" && **word != "&&");
    let receiver: Vec<&str> = receiver.copied().collect();
    if receiver.contains(&"chpasswd") {
        logins(&last.replace("\\n", "\n"), values);
    } else if receiver.iter().any(|word| word.ends_with("-stdin") || *word == "cryptsetup") {
        values.secret(Kind::PASSWORD, last);
    } else if let Some(file) = receiver.iter().skip(1).find(|word| word.starts_with('/')) {
        super::content(Some(file), said.join(" ").into_bytes(), values);
    }
}

/// Splits a line into words as a shell does; operators are separate words.
pub(super) fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut is_word = false;
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        if words.len() >= MAX_WORDS {
            break;
        }
        match c {
            '\'' => {
                is_word = true;
                word.extend(chars.by_ref().take_while(|c| *c != '\''));
            }
            '"' => {
                is_word = true;
                while let Some(c) = chars.next().filter(|c| *c != '"') {
                    match c {
                        '\\' if chars.peek().is_some_and(|next| "\"\\$`".contains(*next)) => {
                            word.extend(chars.next());
                        }
                        _ => word.push(c),
                    }
                }
            }
            '\\' => {
                is_word = true;
                word.extend(chars.next());
            }
            '#' if !is_word => break,
            c if c.is_whitespace() || ";|&<>()".contains(c) => {
                if std::mem::take(&mut is_word) {
                    words.push(std::mem::take(&mut word));
                }
                if !c.is_whitespace() {
                    let mut operator = String::from(c);
                    while let Some(next) = chars.next_if(|next| *next == c) {
                        operator.push(next);
                    }
                    words.push(operator);
                }
            }
            c => {
                is_word = true;
                word.push(c);
            }
        }
    }
    if is_word {
        words.push(word);
    }
    words
}
