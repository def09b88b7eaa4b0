use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use landfall_net::dbus::{Connection, DbusError, Peer, Signal, Value};

use super::{Attempt, Next, Operation, Pending, Seen, Status, UpdateError};

const SYSTEM_BUS: &str = "/run/dbus/system_bus_socket";

const NAME: &str = "com.coreos.update1";
const PATH: &str = "/com/coreos/update1";
const INTERFACE: &str = "com.coreos.update1.Manager";
const BUS: &str = "org.freedesktop.DBus";
/// Timeout of one call: update_engine answers from memory.
const CALL_LIMIT: Duration = Duration::from_secs(25);
/// Interval between polls: a signal may be lost when the bus is busy.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// update_engine on a bus.
#[derive(Clone, Debug)]
pub struct Engine {
    address: String,
}

// === impl Engine ===

impl Engine {
    /// Connects to the system bus of the machine below `root`, or to the bus named by the environment.
    pub(crate) fn of_machine(root: &Path) -> Self {
        let named = std::env::var("DBUS_SYSTEM_BUS_ADDRESS").ok();
        let named = named.as_deref().and_then(|address| address.strip_prefix("unix:path="));
        Self::at(match named {
            Some(path) => path.split([',', ';']).next().unwrap_or(path).to_owned(),
            None => root.join(SYSTEM_BUS.trim_start_matches('/')).display().to_string(),
        })
    }

    /// Connects to the bus at this address.
    pub fn at(address: impl Into<String>) -> Self {
        Self { address: address.into() }
    }

    pub fn status(&self) -> Result<Status, UpdateError> {
        status(&mut self.connect()?)
    }

    /// Requests an update and waits for its outcome. `tell` receives every observed status and returns whether to
    /// continue.
    pub fn update(&self, tell: &mut dyn FnMut(&Status) -> bool) -> Result<Pending, UpdateError> {
        let mut connection = self.connect()?;
        let listen = |connection: &mut Connection| {
            connection.listen(&format!("type='signal',interface='{INTERFACE}',path='{PATH}'"))?;
            connection
                .listen(&format!("type='signal',sender='{BUS}',member='NameOwnerChanged',arg0='{NAME}'"))
        };
        listen(&mut connection).map_err(UpdateError::Call)?;
        let begin = Instant::now();
        let mut attempt = Attempt::new();
        let mut last = Status {
            last_checked: 0,
            progress: 0.0,
            operation: Operation::Other,
            new_version: String::new(),
            new_size: 0,
        };
        let mut seen = look(&mut connection)?;
        loop {
            if let Seen::Status(status) = &seen {
                last = status.clone();
            }
            // Also called without any change, so that the caller can stop waiting.
            if !tell(&last) {
                return Err(UpdateError::Stopped);
            }
            seen = match attempt.see(&seen, begin.elapsed())? {
                Next::End(pending) => return Ok(pending),
                Next::Ask => match call(&mut connection, "AttemptUpdate") {
                    Ok(_) => Seen::Nothing,
                    Err(error) if is_absence(&error) => Seen::Gone,
                    Err(error) => return Err(UpdateError::Call(error)),
                },
                Next::Watch => match connection.next_signal(LOOK_EVERY).map_err(UpdateError::Call)? {
                    Some(signal) => heard(&signal)?,
                    None => look(&mut connection)?,
                },
            };
        }
    }

    fn connect(&self) -> Result<Connection, UpdateError> {
        let failed = |source| UpdateError::Bus { address: self.address.clone(), source };
        let stream = UnixStream::connect(&self.address).map_err(failed)?;
        Connection::open(stream, Peer::Bus, CALL_LIMIT).map_err(UpdateError::Call)
    }
}

fn call(connection: &mut Connection, method: &str) -> Result<Vec<Value>, DbusError> {
    connection.extend(CALL_LIMIT);
    connection.call(NAME, PATH, INTERFACE, method, &[])
}

fn status(connection: &mut Connection) -> Result<Status, UpdateError> {
    match call(connection, "GetStatus") {
        Ok(values) => parse(&values),
        Err(error) if is_absence(&error) => Err(UpdateError::Absent),
        Err(error) => Err(UpdateError::Call(error)),
    }
}

fn look(connection: &mut Connection) -> Result<Seen, UpdateError> {
    match status(connection) {
        Ok(status) => Ok(Seen::Status(status)),
        Err(UpdateError::Absent) => Ok(Seen::Gone),
        Err(error) => Err(error),
    }
}

fn heard(signal: &Signal) -> Result<Seen, UpdateError> {
    match (signal.interface.as_str(), signal.member.as_str()) {
        (INTERFACE, "StatusUpdate") => parse(&signal.values).map(Seen::Status),
        (BUS, "NameOwnerChanged") => {
            let owner = signal.values.get(2);
            // Polling detects the restart of update_engine: its state differs then.
            let is_gone = matches!(owner, Some(Value::Text(owner)) if owner.is_empty());
            Ok(if is_gone { Seen::Gone } else { Seen::Nothing })
        }
        _ => Ok(Seen::Nothing),
    }
}

fn parse(values: &[Value]) -> Result<Status, UpdateError> {
    match values {
        [
            Value::Signed(last_checked),
            Value::Double(progress),
            Value::Text(operation),
            Value::Text(new_version),
            Value::Signed(new_size),
        ] => Ok(Status {
            last_checked: *last_checked,
            progress: *progress,
            operation: Operation::parse(operation),
            new_version: new_version.chars().take(128).collect(),
            new_size: *new_size,
        }),
        values => {
            let said: Vec<String> = values.iter().map(ToString::to_string).collect();
            Err(UpdateError::Answer { said: said.join(" ").chars().take(256).collect() })
        }
    }
}

/// The service is absent or hangs; systemd restarts it.
fn is_absence(error: &DbusError) -> bool {
    const ABSENCES: [&str; 4] = ["ServiceUnknown", "NameHasNoOwner", "NoReply", "Disconnected"];
    match error {
        DbusError::Failed { name, .. } => ABSENCES.iter().any(|absence| name.ends_with(absence)),
        DbusError::TimedOut => true,
        _ => false,
    }
}
