//! Requests to the node's systemd over its private socket, which is also available below `/host`.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use landfall_net::dbus::{Connection, DbusError, Peer, Value};

const PRIVATE: &str = "run/systemd/private";
const NAME: &str = "org.freedesktop.systemd1";
const PATH: &str = "/org/freedesktop/systemd1";
const MANAGER: &str = "org.freedesktop.systemd1.Manager";
/// Reloading all units takes seconds on a slow disk.
const LIMIT: Duration = Duration::from_secs(90);

/// The systemd of the machine below a root.
#[derive(Clone, Debug)]
pub(crate) struct Systemd {
    socket: PathBuf,
}

// === impl Systemd ===

impl Systemd {
    pub(crate) fn at(root: &Path) -> Self {
        Self { socket: root.join(PRIVATE) }
    }

    /// Returns whether systemd is running; a root that is a mounted disk or a directory has none.
    pub(crate) fn is_there(&self) -> bool {
        self.socket.exists()
    }

    pub(crate) fn reload(&self) -> Result<(), String> {
        self.call(PATH, MANAGER, "Reload", &[]).map(drop)
    }

    pub(crate) fn reboot(&self) -> Result<(), String> {
        // No later job may cancel the reboot: continuing between two states of the system makes no sense.
        self.call(PATH, MANAGER, "StartUnit", &["reboot.target", "replace-irreversibly"]).map(drop)
    }

    pub(crate) fn start(&self, unit: &str) -> Result<(), String> {
        self.call(PATH, MANAGER, "StartUnit", &[unit, "replace"]).map(drop)
    }

    pub(crate) fn unit_state(&self, unit: &str) -> Result<String, String> {
        let loaded = self.call(PATH, MANAGER, "LoadUnit", &[unit])?;
        let Some(Value::Text(path)) = loaded.first() else {
            return Err("systemd: an answer without a unit".to_owned());
        };
        let arguments = ["org.freedesktop.systemd1.Unit", "ActiveState"];
        let answer = self.call(path, "org.freedesktop.DBus.Properties", "Get", &arguments)?;
        match answer.into_iter().next() {
            Some(Value::Text(state)) => Ok(state),
            _ => Err("systemd: an answer without a state".to_owned()),
        }
    }

    fn call(
        &self,
        path: &str,
        interface: &str,
        method: &str,
        arguments: &[&str],
    ) -> Result<Vec<Value>, String> {
        let stream =
            UnixStream::connect(&self.socket).map_err(|error| format!("cannot reach systemd: {error}"))?;
        let mut connection = Connection::open(stream, Peer::Program, LIMIT).map_err(|error| told(&error))?;
        connection.call(NAME, path, interface, method, arguments).map_err(|error| told(&error))
    }
}

fn told(error: &DbusError) -> String {
    format!("systemd: {}", landfall_model::chain(error))
}
