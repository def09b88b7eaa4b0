//! What preparing a node asks of systemd.

use std::os::unix::net::UnixStream;
use std::time::Duration;

use landfall_dbus::{Connection, DbusError, Peer, Value};

/// systemd's own socket, there even when the bus is not; only root may use it.
const PRIVATE: &str = "/run/systemd/private";
const MANAGER: [&str; 3] =
    ["org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager"];
/// Reading all units anew takes seconds on a slow disk.
const LIMIT: Duration = Duration::from_secs(90);

/// Boots the machine anew, in good order. When this returns, systemd has begun.
pub fn reboot() -> Result<(), String> {
    // No later job may undo it: between two states of the system nothing else makes sense.
    call("StartUnit", &["reboot.target", "replace-irreversibly"])
}

pub(crate) fn call(method: &str, arguments: &[&str]) -> Result<(), String> {
    let stream = UnixStream::connect(PRIVATE).map_err(|error| format!("cannot reach systemd: {error}"))?;
    let mut connection = Connection::open(stream, Peer::Program, LIMIT).map_err(|error| told(&error))?;
    let [name, path, interface] = MANAGER;
    let _: Vec<Value> =
        connection.call(name, path, interface, method, arguments).map_err(|error| told(&error))?;
    Ok(())
}

fn told(error: &DbusError) -> String {
    format!("systemd: {}", landfall_model::chain(error))
}
