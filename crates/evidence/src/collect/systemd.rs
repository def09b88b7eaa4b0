//! systemd over D-Bus.
//!
//! Its private socket is available before the bus and when the bus failed; otherwise the system bus is used.

use std::time::Duration;

use landfall_net::dbus::{Connection, DbusError, Peer, Value};

use super::host::{Host, is_absent};

pub const SYSTEMD: &str = "org.freedesktop.systemd1";
pub const PATH: &str = "/org/freedesktop/systemd1";
pub const MANAGER: &str = "org.freedesktop.systemd1.Manager";
pub const PROPERTIES: &str = "org.freedesktop.DBus.Properties";

/// A unit as systemd lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    pub name: String,
    pub description: String,
    pub load: String,
    pub active: String,
    pub sub: String,
    /// The D-Bus object path with its properties.
    pub path: String,
}

/// Connects to the machine's systemd; `None` if it does not run.
pub fn connect(host: &Host, within: Duration) -> Result<Option<Connection>, DbusError> {
    let mut failed = None;
    for (path, peer) in [("/run/systemd/private", Peer::Program), ("/run/dbus/system_bus_socket", Peer::Bus)]
    {
        let opened = match host.connect(path) {
            Ok(stream) => Connection::open(stream, peer, within),
            Err(error) if is_absent(&error) => continue,
            Err(source) => Err(DbusError::Io { source }),
        };
        match opened {
            Ok(connection) => return Ok(Some(connection)),
            Err(error) => failed = Some(error),
        }
    }
    failed.map_or(Ok(None), Err)
}

/// Returns all units loaded by systemd.
pub fn units(connection: &mut Connection) -> Result<Vec<Unit>, DbusError> {
    let listed = connection.call(SYSTEMD, PATH, MANAGER, "ListUnits", &[])?;
    match listed.into_iter().next() {
        Some(Value::Array(units)) => Ok(units.into_iter().filter_map(Unit::from_value).collect()),
        _ => Err(DbusError::Malformed { what: "no list of units" }),
    }
}

/// Returns one property of a unit; `interface` is `Unit`, `Service` or similar.
pub fn property(
    connection: &mut Connection,
    unit: &Unit,
    interface: &str,
    name: &str,
) -> Result<Value, DbusError> {
    let interface = format!("{SYSTEMD}.{interface}");
    let got = connection.call(SYSTEMD, &unit.path, PROPERTIES, "Get", &[&interface, name])?;
    got.into_iter().next().ok_or(DbusError::Malformed { what: "no value" })
}

// === impl Unit ===

impl Unit {
    fn from_value(value: Value) -> Option<Self> {
        let Value::Struct(fields) = value else { return None };
        let mut fields = fields.into_iter();
        let mut text = || match fields.next() {
            Some(Value::Text(text)) => Some(text),
            _ => None,
        };
        let (name, description, load, active, sub) = (text()?, text()?, text()?, text()?, text()?);
        // Skips the unit that this one follows.
        text()?;
        Some(Self { name, description, load, active, sub, path: text()? })
    }

    /// Returns whether the unit fails. A unit in a restart loop has the state *activating*, not *failed*.
    pub fn is_failing(&self) -> bool {
        self.active == "failed" || self.sub == "auto-restart"
    }
}
