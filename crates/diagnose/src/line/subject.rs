//! The subject of a message: a unit, a device, or a module of cloud-init. The text begins after it.

/// Bytes in which the name of a device or a level ends.
const MAX_SUBJECT: usize = 48;

/// Where a message continues after the name of a unit or device: `kubelet.service: `, `EXT4-fs (sda1): `, `device (eth0): `.
pub(crate) fn subject(message: &[u8]) -> usize {
    let level = network_level(message);
    let is_name = |byte: &&u8| byte.is_ascii_alphanumeric() || b"-_.@/\\".contains(byte);
    let rest = &message[level..];
    // cloud-init separates the time by a dash.
    let rest = rest.strip_prefix(b"- ").unwrap_or(rest);
    let rest = &rest[rest.iter().take_while(is_name).count()..];
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

fn behind_level(text: &[u8]) -> Option<&[u8]> {
    let level = text.iter().take_while(|byte| byte.is_ascii_uppercase()).count();
    text[level..].strip_prefix(b"]").filter(|_| level > 0)
}

/// Whether cloud-init's own modules report what they do. These messages repeat metadata of the machine, except for the results of
/// stages.
pub(crate) fn is_report_of_cloud_init(message: &[u8]) -> bool {
    let message = message.strip_prefix(b"- ").unwrap_or(message);
    let module = message.iter().take_while(|byte| byte.is_ascii_alphanumeric() || **byte == b'_').count();
    let levels: [&[u8]; 2] = [b".py[DEBUG]: ", b".py[INFO]: "];
    let text = levels.iter().find_map(|level| message[module..].strip_prefix(*level));
    text.is_some_and(|text| !text.starts_with(b"finish: ") && !text.starts_with(b"start: "))
}

/// The bytes of `<warn>  [1767323345.1234] `, with which NetworkManager begins a message.
fn network_level(message: &[u8]) -> usize {
    let window = &message[..message.len().min(MAX_SUBJECT)];
    let end = || memchr::memmem::find(window, b"] ").filter(|_| window.starts_with(b"<"));
    end().map_or(0, |end| end + 2)
}
