//! Processes that write to a journal, and the entries that journald creates for them.

use std::fmt::Write as _;

/// Start time of all entries in microseconds since 1970: 2026-01-02T03:04:05Z.
const START: u64 = 1_767_323_045_000_000;

/// Maximum length of a process name in the kernel.
const COMM: usize = 15;

/// A process as journald describes it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Writer {
    pub(crate) transport: &'static str,
    pub(crate) pid: &'static str,
    pub(crate) uid: &'static str,
    pub(crate) exe: &'static str,
    /// The cgroup from which journald derives the unit.
    pub(crate) cgroup: &'static str,
    /// The value of `SYSLOG_IDENTIFIER`; the name of the program if empty.
    pub(crate) identifier: &'static str,
}

/// Replaces the tokens of a template with a phrase, encoded as by the writer of the entry.
pub(crate) fn fill(template: &str, phrase: &str) -> String {
    let short = phrase.chars().take(COMM).collect::<String>();
    let quoted = format!("{phrase:?}");
    let mut text = template.to_owned();
    // Tokens in the phrase itself must not be replaced: each token is replaced with a placeholder first.
    let tokens: [(&str, String); 9] = [
        ("{p}", phrase.to_owned()),
        ("{q}", quoted.clone()),
        // Inside another quoted string: unquoted and quoted.
        ("{e}", inner(&quoted).to_owned()),
        ("{qq}", inner(&format!("{quoted:?}")).to_owned()),
        ("{comm}", short.clone()),
        ("{path}", escaped(phrase, b":_.", |byte| format!("\\x{byte:02x}"))),
        ("{dns}", escaped(phrase, b"-_.", |byte| format!("\\{byte:03}"))),
        ("{hex}", audit(phrase)),
        ("{hexcomm}", audit(&short)),
    ];
    for (mark, (token, _)) in ('\u{e000}'..).zip(&tokens) {
        text = text.replace(token, &mark.to_string());
    }
    for (mark, (_, value)) in ('\u{e000}'..).zip(&tokens) {
        text = text.replace(mark, value);
    }
    text
}

/// Removes the quotes of a quoted string.
fn inner(quoted: &str) -> &str {
    quoted.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(quoted)
}

/// Escapes like systemd for paths in unit names, and like resolvers for domain names.
fn escaped(phrase: &str, kept: &[u8], escape: impl Fn(u8) -> String) -> String {
    phrase.bytes().fold(String::new(), |mut text, byte| {
        if byte.is_ascii_alphanumeric() || kept.contains(&byte) {
            text.push(char::from(byte));
        } else {
            text += &escape(byte);
        }
        text
    })
}

/// Encodes a user-chosen string like the kernel does in audit records.
fn audit(phrase: &str) -> String {
    if phrase.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'"') {
        return format!("\"{phrase}\"");
    }
    phrase.bytes().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02X}");
        text
    })
}

// === impl Writer ===

impl Writer {
    /// Returns a root process that writes to the syslog socket.
    pub(crate) const fn root(exe: &'static str, cgroup: &'static str) -> Self {
        Self { transport: "syslog", pid: "812", uid: "0", exe, cgroup, identifier: "" }
    }

    /// Returns a root process whose output goes to the journal.
    pub(crate) const fn stdout(exe: &'static str, cgroup: &'static str) -> Self {
        Self { transport: "stdout", ..Self::root(exe, cgroup) }
    }

    pub(crate) const fn named(self, identifier: &'static str) -> Self {
        Self { identifier, ..self }
    }

    pub(crate) const fn run(self, exe: &'static str) -> Self {
        Self { exe, ..self }
    }

    /// Writes an entry in the export format.
    pub(crate) fn entry(&self, number: u64, message: &str, fields: &[(&str, String)], out: &mut Vec<u8>) {
        let comm: String = self.exe.rsplit('/').next().unwrap_or_default().chars().take(COMM).collect();
        let identifier = if self.identifier.is_empty() { comm.clone() } else { self.identifier.to_owned() };
        let mut all = vec![
            (
                "__CURSOR",
                format!("s={:032x};i={number:x};b={:032x};m={number:x};t={number:x};x={number:x}", 1, 1),
            ),
            ("__REALTIME_TIMESTAMP", (START + number).to_string()),
            ("__MONOTONIC_TIMESTAMP", (20_000_000 + number).to_string()),
            ("_BOOT_ID", format!("{:032x}", 1)),
            ("_MACHINE_ID", format!("{:032x}", 2)),
            ("_HOSTNAME", "n1".to_owned()),
            ("_TRANSPORT", self.transport.to_owned()),
            ("_PID", self.pid.to_owned()),
            ("_UID", self.uid.to_owned()),
            ("_GID", self.uid.to_owned()),
            ("_COMM", comm),
            ("_EXE", self.exe.to_owned()),
            ("_SYSTEMD_CGROUP", self.cgroup.to_owned()),
            ("_SYSTEMD_UNIT", self.unit().to_owned()),
            ("_SYSTEMD_USER_UNIT", self.user_unit().to_owned()),
            ("MESSAGE", message.to_owned()),
        ];
        let has_own = fields.iter().any(|(name, _)| *name == "SYSLOG_IDENTIFIER");
        if !has_own {
            all.push(("SYSLOG_IDENTIFIER", identifier));
        }
        all.extend(fields.iter().cloned());
        for (name, value) in all.iter().filter(|(_, value)| !value.is_empty()) {
            out.extend_from_slice(name.as_bytes());
            if value.contains('\n') {
                out.push(b'\n');
                out.extend_from_slice(&(value.len() as u64).to_le_bytes());
            } else {
                out.push(b'=');
            }
            out.extend_from_slice(value.as_bytes());
            out.push(b'\n');
        }
        out.push(b'\n');
    }

    /// Returns the first part of the cgroup that is neither a slice nor above one.
    fn unit(&self) -> &'static str {
        let is = |part: &str, kind: &str| part.strip_suffix(kind).is_some();
        let part = self.cgroup.split('/').find(|part| !part.is_empty() && !is(part, ".slice"));
        part.filter(|part| is(part, ".service") || is(part, ".scope")).unwrap_or_default()
    }

    fn user_unit(&self) -> &'static str {
        let unit = self.cgroup.rsplit('/').next().unwrap_or_default();
        if self.unit().starts_with("user@") { unit } else { "" }
    }
}
