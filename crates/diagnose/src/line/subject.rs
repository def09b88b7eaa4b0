//! The subject of a message: a unit, a device, or a cloud-init module. The text starts after it.

use crate::pattern::Gaps;

/// Maximum length of a device name or a level.
const MAX_SUBJECT: usize = 48;

/// Returns the offset after the name of a unit or device: `kubelet.service: `, `EXT4-fs (sda1): `,
/// `device (eth0): `.
pub(crate) fn subject(message: &[u8]) -> usize {
    let level = network_level(message);
    let is_name = |byte: &&u8| byte.is_ascii_alphanumeric() || b"-_.@/\\".contains(byte);
    let rest = &message[level..];
    // cloud-init separates the time with a dash. Without a module after it, a name is not its own.
    let is_logged = rest.starts_with(b"- ");
    let rest = rest.strip_prefix(b"- ").unwrap_or(rest);
    let rest = &rest[rest.iter().take_while(is_name).count()..];
    if is_logged && !rest.starts_with(b"[") {
        return level + 2;
    }
    // `util.py[DEBUG]: `
    let rest = rest.strip_prefix(b"[").and_then(behind_level).unwrap_or(rest);
    // `EXT4-fs error (device sda1): `
    let mut rest = rest.strip_prefix(b" error").filter(|rest| rest.starts_with(b" (")).unwrap_or(rest);
    if let Some(inner) = rest.strip_prefix(b" (")
        && let Some(end) = inner.iter().take(MAX_SUBJECT).position(|byte| *byte == b')')
    {
        rest = &inner[end + 1..];
    }
    let text = rest.strip_prefix(b": ").map(<[u8]>::trim_ascii_start);
    text.map_or(level, |text| message.len() - text.len())
}

/// Returns the unit in a message of the service manager: `kubelet.service` in `kubelet.service: Failed …`.
pub(crate) fn unit(message: &[u8]) -> Option<&[u8]> {
    const KINDS: [&[u8]; 10] = [
        b".automount",
        b".device",
        b".mount",
        b".path",
        b".scope",
        b".service",
        b".slice",
        b".socket",
        b".swap",
        b".timer",
    ];
    let word = message.split(u8::is_ascii_whitespace).next()?.strip_suffix(b":")?;
    KINDS.iter().any(|kind| word.ends_with(kind)).then_some(word)
}

fn behind_level(text: &[u8]) -> Option<&[u8]> {
    let level = text.iter().take_while(|byte| byte.is_ascii_uppercase()).count();
    text[level..].strip_prefix(b"]").filter(|_| level > 0)
}

/// Returns whether cloud-init reports its own actions.
///
/// Only the start of such a message is its own, because it quotes metadata and host names. `None` for output
/// of scripts, for results of stages, and for requests to the metadata service.
pub(crate) fn report_of_cloud_init(message: &[u8]) -> Option<Gaps> {
    if is_report_of_cloud_init(message) {
        return Some(Gaps::Forbidden);
    }
    let (message, is_logged) = message.strip_prefix(b"- ").map_or((message, false), |rest| (rest, true));
    let module = message.iter().take_while(|byte| byte.is_ascii_alphanumeric() || **byte == b'_').count();
    let text = message[module..].strip_prefix(b".py[").and_then(behind_level);
    match text.and_then(|text| text.strip_prefix(b": ")) {
        // The failed program and module are in the middle.
        Some(text) if &message[..module] != b"url_helper" && !is_stage(text) => Some(Gaps::Allowed),
        Some(_) => None,
        None => is_logged.then_some(Gaps::Forbidden),
    }
}

fn is_stage(text: &[u8]) -> bool {
    text.starts_with(b"finish: ") || text.starts_with(b"start: ")
}

/// Returns whether cloud-init's modules report their own actions.
///
/// These messages quote the machine's metadata, except for the results of stages.
pub(crate) fn is_report_of_cloud_init(message: &[u8]) -> bool {
    let message = message.strip_prefix(b"- ").unwrap_or(message);
    let module = message.iter().take_while(|byte| byte.is_ascii_alphanumeric() || **byte == b'_').count();
    let levels: [&[u8]; 2] = [b".py[DEBUG]: ", b".py[INFO]: "];
    let text = levels.iter().find_map(|level| message[module..].strip_prefix(*level));
    text.is_some_and(|text| !is_stage(text))
}

/// Returns the length of `<warn>  [1767323345.1234] `, NetworkManager's message prefix.
fn network_level(message: &[u8]) -> usize {
    let window = &message[..message.len().min(MAX_SUBJECT)];
    let end = || memchr::memmem::find(window, b"] ").filter(|_| window.starts_with(b"<"));
    end().map_or(0, |end| end + 2)
}
