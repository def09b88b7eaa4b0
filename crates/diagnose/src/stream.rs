//! Detection of a stream's log kind.

use std::fmt;

use landfall_model::report::Trust;

use crate::moment::Time;
use crate::places;
use crate::scope::{self, Pod};
use crate::words::WORDS;

/// Bytes inspected: enough to detect the format.
const SAMPLE: usize = 16 * 1024;

/// Header of each container's log in `kubectl cluster-info dump`.
const DUMP: &[u8] = b"==== START logs for container ";

/// The kind of a stream, and its unit if known from its name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stream {
    pub kind: StreamKind,
    /// The unit or program of all lines, such as `kubelet.service`.
    pub unit: Option<String>,
    /// The pod whose container wrote it, from its path.
    pub pod: Option<Pod>,
    /// Whether it contains API objects written by users.
    pub(crate) user_objects: bool,
    /// Whether, by its path, any program or user may have written it.
    pub(crate) of_anyone: bool,
    /// The format of lines that name their writers, such as syslog or the journal. A line without a name, or
    /// with another head, may then be from any writer.
    pub(crate) heads: Option<Heads>,
    /// Whether only root can write the file, so that its name proves its writer.
    pub trust: Trust,
}

/// The start of lines with their writer's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heads {
    /// `2026-01-02T03:04:05`
    Date,
    /// `Jan 02 03:04:05`
    Month,
    Other,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum StreamKind {
    #[default]
    Text,
    /// `journalctl` in one of its short formats, or syslog.
    JournalText,
    Klog,
    Logfmt,
    JsonLines,
    ContainerLog,
    CloudInit,
    Kubeadm,
    /// Kernel ring buffer or serial console.
    Console,
    /// `minikube logs`, `tail -v` and similar: sections with headings `==> name <==`.
    Sections,
    /// `openshift-install` stage records: `/var/log/openshift/*.json`.
    ServiceRecords,
}

// === impl Stream ===

impl Stream {
    /// Detects the kind by content; the name is only a hint for the unit.
    pub fn sniff(name: &str, head: &[u8]) -> Self {
        let sample = &head[..head.len().min(SAMPLE)];
        let kind = StreamKind::sniff(sample);
        let unit = match kind {
            // One file per unit, named after it.
            StreamKind::ServiceRecords => {
                name.rsplit('/').next().and_then(|file| file.split('.').next()).map(str::to_owned)
            }
            _ => unit_of(name),
        };
        let heads = if kind == StreamKind::Sections { None } else { Heads::of(sample) };
        let user_objects = scope::holds_user_objects(name);
        let of_anyone = places::is_of_anyone(name) || sample.starts_with(DUMP);
        Self { kind, unit, pod: scope::pod(name), user_objects, of_anyone, heads, trust: Trust::Claimed }
    }

    /// Returns whether containers or users of the cluster wrote it.
    pub fn is_of_users(&self) -> bool {
        self.user_objects || self.pod.is_some()
    }

    /// Returns whether neither its path nor its owner identifies its writer.
    pub(crate) fn is_of_anyone(&self) -> bool {
        self.of_anyone && self.trust == Trust::Claimed
    }

    /// Returns the same stream, marked as a file that only root can write.
    #[must_use]
    pub fn proven(self) -> Self {
        Self { trust: Trust::Proven, ..self }
    }
}

/// Returns the unit: `kubelet.log` and `journals/kubelet.service.log` belong to the kubelet.
fn unit_of(name: &str) -> Option<String> {
    let file = name.rsplit(['/', ':']).next()?;
    WORDS.known_units.iter().find(|unit| file.starts_with(unit.as_str())).cloned()
}

// === impl Heads ===

impl Heads {
    /// Returns the format of a log's first line, if it names its program.
    fn of(sample: &[u8]) -> Option<Self> {
        let lines = sample.split(|byte| *byte == b'\n');
        let first = lines.filter(|line| !line.is_empty()).find(|line| !line.starts_with(b"-- "))?;
        let head = crate::line::head(first);
        let has_time = matches!(head.outer_time, Some(time) if !matches!(time, Time::Uptime(_)));
        (head.is_program && has_time).then(|| Self::of_line(first))
    }

    fn of_line(line: &[u8]) -> Self {
        match line {
            [b'0'..=b'9', b'0'..=b'9', b'0'..=b'9', b'0'..=b'9', b'-', ..] => Self::Date,
            [a, b, c, b' ', ..] if [a, b, c].iter().all(|byte| byte.is_ascii_alphabetic()) => Self::Month,
            _ => Self::Other,
        }
    }

    /// Returns whether a line starts in this format.
    pub(crate) fn is_of(self, line: &[u8]) -> bool {
        self == Self::Other || self == Self::of_line(line)
    }
}

// === impl StreamKind ===

impl StreamKind {
    /// Returns the display name of a source's kind.
    pub fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::JournalText => "journal-text",
            Self::Klog => "klog",
            Self::Logfmt => "logfmt",
            Self::JsonLines => "json-lines",
            Self::ContainerLog => "container-log",
            Self::CloudInit => "cloud-init",
            Self::Kubeadm => "kubeadm",
            Self::Console => "console",
            Self::Sections => "sections",
            Self::ServiceRecords => "service-records",
        }
    }

    fn sniff(sample: &[u8]) -> Self {
        let mut votes = [0u32; 11];
        for line in sample.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).take(64) {
            if let Some(kind) = Self::of_line(line) {
                votes[kind as usize] +=
                    if kind == Self::Sections || kind == Self::ServiceRecords { 100 } else { 1 };
            }
        }
        let kinds = [
            Self::Text,
            Self::JournalText,
            Self::Klog,
            Self::Logfmt,
            Self::JsonLines,
            Self::ContainerLog,
            Self::CloudInit,
            Self::Kubeadm,
            Self::Console,
            Self::Sections,
            Self::ServiceRecords,
        ];
        kinds
            .into_iter()
            .rev()
            .max_by_key(|kind| votes[*kind as usize])
            .filter(|kind| votes[*kind as usize] > 0)
            .unwrap_or_default()
    }

    fn of_line(line: &[u8]) -> Option<Self> {
        let has = |text: &str| memchr::memmem::find(line, text.as_bytes()).is_some();
        let klog = matches!(
            line,
            [b'I' | b'W' | b'E' | b'F', b'0'..=b'1', b'0'..=b'9', b'0'..=b'3', b'0'..=b'9', b' ', ..]
        );
        if line.starts_with(b"==> ") && line.trim_ascii_end().ends_with(b"<==") {
            Some(Self::Sections)
        } else if has("\"phase\":") && (has("service start") || has("stage start")) {
            Some(Self::ServiceRecords)
        } else if klog {
            Some(Self::Klog)
        } else if line.starts_with(b"{") && line.trim_ascii_end().ends_with(b"}") {
            Some(Self::JsonLines)
        } else if has(" stderr F ") || has(" stdout F ") {
            Some(Self::ContainerLog)
        } else if has(".py[") || has("Cloud-init v.") {
            Some(Self::CloudInit)
        } else if has("level=") && has("msg=") {
            Some(Self::Logfmt)
        } else if line.starts_with(b"[preflight]")
            || line.starts_with(b"[init]")
            || line.starts_with(b"\t[ERROR ")
            || has("error execution phase")
        {
            Some(Self::Kubeadm)
        } else {
            let head = crate::line::head(line);
            match (head.time, head.process) {
                (Some(crate::moment::Time::Uptime(_)), _) => Some(Self::Console),
                (Some(_), Some(_)) => Some(Self::JournalText),
                _ => None,
            }
        }
    }
}

impl fmt::Display for StreamKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_recognised_by_content() {
        for (text, kind) in [
            (
                "E0102 03:04:05.678901    1 a.go:1] x\nI0102 03:04:05.678901    1 a.go:1] y\n",
                StreamKind::Klog,
            ),
            (
                "Jan  2 03:04:05 host kubelet[12]: x\nJan  2 03:04:05 host kubelet[12]: y\n",
                StreamKind::JournalText,
            ),
            ("[    0.000000] Linux version 6.1\n[    0.1] Command line: x\n", StreamKind::Console),
            ("time=\"2026-01-02T03:04:05Z\" level=info msg=\"x\"\n", StreamKind::Logfmt),
            ("[preflight] Running pre-flight checks\n", StreamKind::Kubeadm),
            ("2026-01-02 03:04:05,123 - util.py[DEBUG]: x\n", StreamKind::CloudInit),
            ("==> kubelet <==\nJan 02 03:04:05 host kubelet[1]: x\n", StreamKind::Sections),
            (
                "[{\"phase\":\"service start\",\"timestamp\":\"2026-08-20T10:00:00Z\"},\n",
                StreamKind::ServiceRecords,
            ),
            ("something else\n", StreamKind::Text),
            ("", StreamKind::Text),
        ] {
            assert_eq!(Stream::sniff("x", text.as_bytes()).kind, kind, "{text}");
        }
    }

    #[test]
    fn the_unit_comes_from_the_name() {
        assert_eq!(Stream::sniff("a/b/kubelet.service.log", b"").unit.as_deref(), Some("kubelet"));
        assert_eq!(Stream::sniff("a/b/other.log", b"").unit, None);
    }
}
