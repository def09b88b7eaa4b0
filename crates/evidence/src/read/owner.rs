//! Files whose owner proves which program wrote them.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use landfall_diagnose::Stream;

/// Logs of the machine's own programs. The directories below contain container logs.
const LOGS: &str = "/var/log";

/// Container logs, named by namespace, pod and container.
const CONTAINER_LOGS: [&str; 2] = ["/var/log/pods/", "/var/log/containers/"];

/// Detects the stream of a machine's file.
///
/// A log named after a component and writable only by root is proven to be from that component. Logs without
/// such a name, such as `/var/log/messages`, accept lines of any program.
pub fn stream_of_file(path: &str, head: &[u8], metadata: &Metadata) -> Stream {
    let stream = Stream::sniff(path, head);
    let is_named = stream.unit.is_some() && Path::new(path).parent() == Some(Path::new(LOGS));
    // The kubelet names these directories, and only the runtime writes there.
    let is_of_container = CONTAINER_LOGS.iter().any(|directory| path.starts_with(directory));
    if (is_named || is_of_container) && only_root_writes(metadata) { stream.proven() } else { stream }
}

/// Returns whether all programs can write to a log through syslog.
///
/// If a journal exists, it contains the same lines with proven origins.
pub(super) fn is_shared_log(path: &str) -> bool {
    const SHARED: [&str; 4] =
        ["/var/log/syslog", "/var/log/messages", "/var/log/kern.log", "/var/log/boot.log"];
    SHARED.contains(&path)
}

fn only_root_writes(metadata: &Metadata) -> bool {
    const GROUP_AND_OTHERS: u32 = 0o022;
    metadata.uid() == 0 && metadata.mode() & GROUP_AND_OTHERS == 0
}
