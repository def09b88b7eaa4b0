use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use super::DbusError;
use super::message::{
    METHOD_RETURN, Message, SIGNAL, Value, encode_call, lengths, parse_message, parse_values,
};

/// Maximum number of messages other than the response, such as signals, all of which a private connection receives.
const MAX_OTHERS: usize = 100_000;

const LINE_MAX: usize = 512;

/// Maximum number of queued signals received during calls; the oldest ones are dropped.
const MAX_SIGNALS: usize = 1024;

/// A connection to a bus, or to systemd directly.
#[derive(Debug)]
pub struct Connection {
    stream: UnixStream,
    serial: u32,
    deadline: Instant,
    /// The start of an incomplete message.
    begun: Vec<u8>,
    signals: VecDeque<Message>,
}

/// A signal that a program broadcast.
#[derive(Clone, Debug, PartialEq)]
pub struct Signal {
    pub path: String,
    pub interface: String,
    pub member: String,
    pub values: Vec<Value>,
}

/// The peer: a bus, which requires a greeting, or a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    Bus,
    Program,
}

// === impl Connection ===

impl Connection {
    pub fn open(stream: UnixStream, peer: Peer, within: Duration) -> Result<Self, DbusError> {
        let deadline = Instant::now() + within;
        let mut connection =
            Self { stream, serial: 0, deadline, begun: Vec::new(), signals: VecDeque::new() };
        connection.authenticate()?;
        if peer == Peer::Bus {
            connection.call(
                "org.freedesktop.DBus",
                "/org/freedesktop/DBus",
                "org.freedesktop.DBus",
                "Hello",
                &[],
            )?;
        }
        Ok(connection)
    }

    /// Sets the deadline of the following operations to this time from now.
    pub fn extend(&mut self, within: Duration) {
        self.deadline = Instant::now() + within;
    }

    /// Subscribes to the signals that match a rule, such as `type='signal',interface='i.j'`.
    pub fn listen(&mut self, rule: &str) -> Result<(), DbusError> {
        const BUS: &str = "org.freedesktop.DBus";
        self.call(BUS, "/org/freedesktop/DBus", BUS, "AddMatch", &[rule]).map(drop)
    }

    /// Returns the next signal, or `None` after a timeout.
    pub fn next_signal(&mut self, within: Duration) -> Result<Option<Signal>, DbusError> {
        self.extend(within);
        loop {
            if let Some(message) = self.signals.pop_front() {
                let values = parse_values(&message.signature, &message.body)?;
                let Message { path, interface, member, .. } = message;
                return Ok(Some(Signal { path, interface, member, values }));
            }
            match self.receive() {
                Ok(message) => self.keep(message),
                Err(DbusError::TimedOut) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    pub fn call(
        &mut self,
        destination: &str,
        path: &str,
        interface: &str,
        method: &str,
        arguments: &[&str],
    ) -> Result<Vec<Value>, DbusError> {
        self.serial += 1;
        let call = encode_call(self.serial, [destination, path, interface, method], arguments);
        self.time_left()?;
        self.stream.write_all(&call).map_err(io_error)?;
        for _ in 0..MAX_OTHERS {
            let message = self.receive()?;
            if message.reply_to != self.serial {
                self.keep(message);
                continue;
            }
            let values = parse_values(&message.signature, &message.body)?;
            if message.kind == METHOD_RETURN {
                return Ok(values);
            }
            let error = values.first().map_or_else(|| "unknown error".to_owned(), ToString::to_string);
            return Err(DbusError::Failed { method: method.to_owned(), name: message.error_name, error });
        }
        Err(DbusError::TimedOut)
    }

    fn keep(&mut self, message: Message) {
        if message.kind == SIGNAL {
            if self.signals.len() == MAX_SIGNALS {
                self.signals.pop_front();
            }
            self.signals.push_back(message);
        }
    }

    fn authenticate(&mut self) -> Result<(), DbusError> {
        let uid = rustix::process::geteuid().as_raw().to_string();
        let hex = hex::encode(uid);
        self.time_left()?;
        // Both lines in one write: if systemd reads the second line together with the first call, it ignores the call
        // until more data arrives.
        let hello = format!("\0AUTH EXTERNAL {hex}\r\nBEGIN\r\n");
        self.stream.write_all(hello.as_bytes()).map_err(io_error)?;
        let answer = self.line()?;
        if !answer.starts_with("OK ") {
            return Err(DbusError::Refused { answer });
        }
        Ok(())
    }

    fn line(&mut self) -> Result<String, DbusError> {
        let mut line = Vec::new();
        while line.len() < LINE_MAX {
            let mut byte = [0];
            self.read(&mut byte)?;
            match byte[0] {
                b'\n' => return Ok(String::from_utf8_lossy(&line).trim_end().to_owned()),
                byte => line.push(byte),
            }
        }
        Err(DbusError::Malformed { what: "a line without end" })
    }

    /// Returns the next message. After a timeout in the middle of one, the received bytes are kept for the next call.
    fn receive(&mut self) -> Result<Message, DbusError> {
        const FIXED: usize = 16;
        self.fill(FIXED)?;
        let mut fixed = [0; FIXED];
        fixed.copy_from_slice(&self.begun[..FIXED]);
        let (fields_len, body_len) = lengths(&fixed)?;
        let whole = FIXED + fields_len.next_multiple_of(8) + body_len;
        self.fill(whole)?;
        let message = parse_message(&fixed, &self.begun[FIXED..whole]);
        self.begun.clear();
        message
    }

    fn fill(&mut self, length: usize) -> Result<(), DbusError> {
        while self.begun.len() < length {
            let mut piece = vec![0; (length - self.begun.len()).min(64 * 1024)];
            let count = self.read_some(&mut piece)?;
            self.begun.extend_from_slice(&piece[..count]);
        }
        Ok(())
    }

    fn read(&mut self, buffer: &mut [u8]) -> Result<(), DbusError> {
        let mut filled = 0;
        while filled < buffer.len() {
            filled += self.read_some(&mut buffer[filled..])?;
        }
        Ok(())
    }

    fn read_some(&mut self, buffer: &mut [u8]) -> Result<usize, DbusError> {
        loop {
            self.time_left()?;
            match self.stream.read(buffer) {
                Ok(0) => return Err(DbusError::Malformed { what: "the connection ended" }),
                Ok(count) => return Ok(count),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(io_error(error)),
            }
        }
    }

    /// Sets the socket's timeouts to the remaining time.
    fn time_left(&mut self) -> Result<(), DbusError> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(DbusError::TimedOut);
        }
        let set =
            self.stream.set_read_timeout(Some(left)).and_then(|()| self.stream.set_write_timeout(Some(left)));
        set.map_err(io_error)
    }
}

fn io_error(source: io::Error) -> DbusError {
    match source.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => DbusError::TimedOut,
        _ => DbusError::Io { source },
    }
}
