//! The audit log: one JSON object per line for each request to the gateway's own paths and for its outcome.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use hyper::StatusCode;
use jiff::Timestamp;
use serde_json::json;

use crate::access::Admitted;

/// Size at which the log is renamed to `….1` and a new one starts: the log must not fill the disk of a failing host.
const MAX_FILE: u64 = 16 * 1024 * 1024;

/// A request that is audited.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    client: SocketAddr,
    method: String,
    path: String,
}

#[derive(Debug)]
pub(crate) struct Audit {
    file: Option<Mutex<Lines>>,
}

#[derive(Debug)]
struct Lines {
    path: PathBuf,
    file: File,
    length: u64,
}

// === impl Event ===

impl Event {
    pub(crate) fn new(client: SocketAddr, method: &str, path: &str) -> Self {
        Self { client, method: method.to_owned(), path: path.to_owned() }
    }
}

// === impl Audit ===

impl Audit {
    pub(crate) fn open(path: Option<PathBuf>) -> io::Result<Self> {
        Ok(Self { file: path.map(Lines::open).transpose()?.map(Mutex::new) })
    }

    pub(crate) fn admitted(&self, event: &Event, who: &Admitted) {
        tracing::info!(client = %event.client, method = event.method, path = event.path, user = who.user, by = who.by, "admitted");
        self.write(&json!({
            "time": Timestamp::now().to_string(), "client": event.client.to_string(),
            "method": event.method, "path": event.path, "user": who.user, "decision": "allow", "by": who.by,
        }));
    }

    pub(crate) fn denied(&self, event: &Event, user: Option<&str>, code: StatusCode, reason: &str) {
        tracing::info!(client = %event.client, method = event.method, path = event.path, user, code = code.as_u16(), reason, "denied");
        self.write(&json!({
            "time": Timestamp::now().to_string(), "client": event.client.to_string(),
            "method": event.method, "path": event.path, "user": user, "decision": "deny",
            "code": code.as_u16(), "reason": reason,
        }));
    }

    /// Records the end of an admitted tunnel.
    pub(crate) fn ended(&self, event: &Event, user: &str, up: u64, down: u64) {
        tracing::info!(client = %event.client, path = event.path, user, up, down, "ended");
        self.write(&json!({
            "time": Timestamp::now().to_string(), "client": event.client.to_string(),
            "method": event.method, "path": event.path, "user": user, "decision": "ended", "up": up, "down": down,
        }));
    }

    fn write(&self, line: &serde_json::Value) {
        let Some(file) = &self.file else { return };
        let mut lines = file.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = lines.add(&format!("{line}\n")) {
            tracing::error!(%error, path = %lines.path.display(), "the audit log cannot be written");
        }
    }
}

// === impl Lines ===

impl Lines {
    fn open(path: PathBuf) -> io::Result<Self> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let file = OpenOptions::new().create(true).append(true).mode(0o600).open(&path)?;
        let length = file.metadata()?.len();
        Ok(Self { path, file, length })
    }

    fn add(&mut self, line: &str) -> io::Result<()> {
        if self.length >= MAX_FILE {
            let mut old = self.path.clone().into_os_string();
            old.push(".1");
            std::fs::rename(&self.path, &old)?;
            *self = Self::open(self.path.clone())?;
        }
        self.length += line.len() as u64;
        self.file.write_all(line.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decisions_are_lines_and_the_file_does_not_grow_for_ever() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log/audit.log");
        let audit = Audit::open(Some(path.clone())).unwrap();
        let event = Event::new("192.0.2.7:1".parse().unwrap(), "GET", "/bootstrap");
        audit.denied(&event, None, StatusCode::UNAUTHORIZED, "no\nname");
        audit.admitted(&event, &Admitted { user: "jane".to_owned(), by: "group" });
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!((lines.len(), &lines[0]["code"], &lines[1]["user"]), (2, &json!(401), &json!("jane")));
        audit.file.as_ref().unwrap().lock().unwrap().length = MAX_FILE;
        audit.ended(&event, "jane", 1, 2);
        assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 1);
        assert!(folder.path().join("log/audit.log.1").is_file());
    }
}
