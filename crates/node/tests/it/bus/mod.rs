//! A private D-Bus daemon, and a minimal server side of the protocol to register a service on it.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use landfall_testkit::{Process, eventually};
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(60);
const NAME: &str = "com.coreos.update1";
const PATH: &str = "/com/coreos/update1";
const MANAGER: &str = "com.coreos.update1.Manager";

/// A running dbus-daemon.
pub(crate) struct Bus {
    _daemon: Process,
    folder: TempDir,
}

/// The state that the updater reports: operation and version.
#[derive(Clone, Debug)]
pub(crate) struct Told(String, String);

/// One action after a request for an update.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    Tell(Told),
    /// Leaves the bus like a process that dies.
    Leave,
}

/// A service that simulates update_engine until it is dropped.
pub(crate) struct PlayedEngine {
    asked: Arc<AtomicU32>,
    thread: Mutex<Option<JoinHandle<()>>>,
    stream: UnixStream,
}

struct Service {
    stream: UnixStream,
    serial: u32,
    told: Told,
    acts: Vec<Act>,
    asked: Arc<AtomicU32>,
}

/// The parts of a message that a service needs.
#[derive(Debug, Default)]
struct Message {
    kind: u8,
    serial: u32,
    sender: String,
    member: String,
    reply_to: u32,
}

pub(crate) fn status(operation: &str, version: &str) -> Told {
    Told(format!("UPDATE_STATUS_{operation}"), version.to_owned())
}

// === impl Bus ===

impl Bus {
    pub(crate) fn start() -> Self {
        let folder = tempfile::Builder::new().prefix("bus-").tempdir().unwrap();
        let socket = folder.path().join("socket");
        let config = format!(
            "<busconfig><type>system</type><listen>unix:path={}</listen><policy context='default'>\
             <allow send_destination='*' eavesdrop='true'/><allow eavesdrop='true'/><allow own='*'/></policy></busconfig>",
            socket.display()
        );
        let path = folder.path().join("bus.conf");
        std::fs::write(&path, config).unwrap();
        let mut daemon = Process::start("dbus-daemon", Path::new("dbus-daemon"), folder.path(), |command| {
            command.arg("--nofork").arg(format!("--config-file={}", path.display()));
        })
        .unwrap();
        daemon.wait_until("the bus to listen", LIMIT, || UnixStream::connect(&socket).ok()).unwrap();
        Self { _daemon: daemon, folder }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    /// Registers an updater in this state, which performs these actions after a request for an update.
    pub(crate) fn engine(&self, told: Told, acts: Vec<Act>) -> PlayedEngine {
        let stream = UnixStream::connect(self.socket()).unwrap();
        let asked = Arc::new(AtomicU32::new(0));
        let kept = stream.try_clone().unwrap();
        let mut service = Service { stream, serial: 0, told, acts, asked: Arc::clone(&asked) };
        service.join();
        let thread = std::thread::spawn(move || service.serve());
        PlayedEngine { asked, thread: Mutex::new(Some(thread)), stream: kept }
    }
}

// === impl PlayedEngine ===

impl PlayedEngine {
    pub(crate) fn asked(&self) -> u32 {
        self.asked.load(Ordering::SeqCst)
    }

    pub(crate) fn wait_for_its_end(&self) {
        let thread = self.thread.lock().unwrap().take().unwrap();
        eventually("the updater to leave", LIMIT, || thread.is_finished().then_some(())).unwrap();
        thread.join().unwrap();
    }
}

impl Drop for PlayedEngine {
    fn drop(&mut self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
        if let Some(thread) = self.thread.lock().unwrap().take() {
            let _ = thread.join();
        }
    }
}

// === impl Service ===

impl Service {
    fn join(&mut self) {
        let uid = rustix::process::geteuid().as_raw().to_string();
        let hex: String = uid.bytes().map(|byte| format!("{byte:02x}")).collect();
        write!(self.stream, "\0AUTH EXTERNAL {hex}\r\n").unwrap();
        let mut byte = [0];
        while byte[0] != b'\n' {
            self.stream.read_exact(&mut byte).unwrap();
        }
        self.stream.write_all(b"BEGIN\r\n").unwrap();
        let bus = "org.freedesktop.DBus";
        let to_bus = [(1, 'o', "/org/freedesktop/DBus"), (2, 's', bus), (6, 's', bus)];
        self.send(1, 0, &[&to_bus[..], &[(3, 's', "Hello")]].concat(), "", &[]);
        let mut body = Vec::new();
        text(&mut body, NAME);
        align(&mut body, 4);
        body.extend(0_u32.to_le_bytes());
        let serial = self.send(1, 0, &[&to_bus[..], &[(3, 's', "RequestName")]].concat(), "su", &body);
        while self.receive().unwrap().reply_to != serial {}
    }

    fn serve(&mut self) {
        while let Some(message) = self.receive() {
            if message.kind != 1 {
                continue;
            }
            let fields = [(6, 's', message.sender.as_str())];
            match message.member.as_str() {
                "GetStatus" => {
                    let body = self.status_body();
                    self.send(2, message.serial, &fields, "xdssx", &body);
                }
                "AttemptUpdate" => {
                    self.asked.fetch_add(1, Ordering::SeqCst);
                    self.send(2, message.serial, &fields, "", &[]);
                    for act in std::mem::take(&mut self.acts) {
                        let Act::Tell(told) = act else {
                            // A shutdown rather than a drop: the test holds the socket as well.
                            self.stream.shutdown(std::net::Shutdown::Both).unwrap();
                            return;
                        };
                        self.told = told;
                        let body = self.status_body();
                        let fields = [(1, 'o', PATH), (2, 's', MANAGER), (3, 's', "StatusUpdate")];
                        self.send(4, 0, &fields, "xdssx", &body);
                    }
                }
                _ => {}
            }
        }
    }

    fn status_body(&self) -> Vec<u8> {
        let mut body = 1_i64.to_le_bytes().to_vec();
        body.extend(0.5_f64.to_le_bytes());
        text(&mut body, &self.told.0);
        text(&mut body, &self.told.1);
        align(&mut body, 8);
        body.extend(1000_i64.to_le_bytes());
        body
    }

    fn send(
        &mut self,
        kind: u8,
        reply_to: u32,
        fields: &[(u8, char, &str)],
        signature: &str,
        body: &[u8],
    ) -> u32 {
        self.serial += 1;
        let mut header = Vec::new();
        for (code, of, value) in fields {
            align(&mut header, 8);
            header.extend([*code, 1, *of as u8, 0]);
            text(&mut header, value);
        }
        if reply_to != 0 {
            align(&mut header, 8);
            header.extend([5, 1, b'u', 0]);
            header.extend(reply_to.to_le_bytes());
        }
        if !signature.is_empty() {
            align(&mut header, 8);
            header.extend([8, 1, b'g', 0, u8::try_from(signature.len()).unwrap()]);
            header.extend(signature.bytes().chain([0]));
        }
        let mut message = vec![b'l', kind, 0, 1];
        message.extend(u32::try_from(body.len()).unwrap().to_le_bytes());
        message.extend(self.serial.to_le_bytes());
        message.extend(u32::try_from(header.len()).unwrap().to_le_bytes());
        message.extend(header);
        align(&mut message, 8);
        message.extend_from_slice(body);
        // The receiver may have disconnected.
        let _ = self.stream.write_all(&message);
        self.serial
    }

    /// Returns `None` when the connection has ended.
    fn receive(&mut self) -> Option<Message> {
        let mut fixed = [0; 16];
        self.stream.read_exact(&mut fixed).ok()?;
        let number = |at: usize| u32::from_le_bytes(fixed[at..at + 4].try_into().unwrap());
        let (body, fields) = (number(4) as usize, number(12) as usize);
        let mut rest = vec![0; fields.next_multiple_of(8) + body];
        self.stream.read_exact(&mut rest).ok()?;
        let mut message = Message { kind: fixed[1], serial: number(8), ..Message::default() };
        let mut at = 0;
        while at < fields {
            at = at.next_multiple_of(8);
            let (code, of) = (rest[at], rest[at + 2]);
            at += 4;
            let length = match of {
                b'g' => rest[at] as usize,
                _ => u32::from_le_bytes(rest[at..at + 4].try_into().unwrap()) as usize,
            };
            at += if of == b'g' { 1 } else { 4 };
            if of == b'u' {
                if code == 5 {
                    message.reply_to = u32::try_from(length).unwrap();
                }
                continue;
            }
            let value = String::from_utf8_lossy(&rest[at..at + length]).into_owned();
            at += length + 1;
            match code {
                3 => message.member = value,
                7 => message.sender = value,
                _ => {}
            }
        }
        Some(message)
    }
}

fn align(out: &mut Vec<u8>, to: usize) {
    out.resize(out.len().next_multiple_of(to), 0);
}

fn text(out: &mut Vec<u8>, value: &str) {
    align(out, 4);
    out.extend(u32::try_from(value.len()).unwrap().to_le_bytes());
    out.extend(value.bytes().chain([0]));
}
