//! Files whose owner proves their writer.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use landfall_diagnose::Stream;

/// Logs of programs that the machine runs itself. The folders below hold logs of containers.
const LOGS: &str = "/var/log";

/// Logs of containers, named by namespace, pod and container.
const CONTAINER_LOGS: [&str; 2] = ["/var/log/pods/", "/var/log/containers/"];

/// Recognizes the stream of a machine's file. A log that is named after a component, and that only root can write, proves that the
/// component wrote it. Any program writes to a log without such a name, as `/var/log/messages`.
pub fn stream_of_file(path: &str, head: &[u8], metadata: &Metadata) -> Stream {
    let stream = Stream::sniff(path, head);
    let is_named = stream.unit.is_some() && Path::new(path).parent() == Some(Path::new(LOGS));
    // The kubelet names these directories, and only the runtime writes there.
    let is_of_container = CONTAINER_LOGS.iter().any(|directory| path.starts_with(directory));
    if (is_named || is_of_container) && only_root_writes(metadata) { stream.proven() } else { stream }
}

/// Whether every program can write to a log through the system logger. Where a journal exists it has the same lines, with proven
/// origins.
pub(super) fn is_shared_log(path: &str) -> bool {
    const SHARED: [&str; 4] =
        ["/var/log/syslog", "/var/log/messages", "/var/log/kern.log", "/var/log/boot.log"];
    SHARED.contains(&path)
}

fn only_root_writes(metadata: &Metadata) -> bool {
    const GROUP_AND_OTHERS: u32 = 0o022;
    metadata.uid() == 0 && metadata.mode() & GROUP_AND_OTHERS == 0
}
