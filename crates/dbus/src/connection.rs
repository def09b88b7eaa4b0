use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use crate::DbusError;
use crate::message::{METHOD_RETURN, Message, Value, encode_call, lengths, parse_message, parse_values};

/// Messages that are no answer to our call, such as signals, which a private connection gets all of.
const MAX_OTHERS: usize = 100_000;

const LINE_MAX: usize = 512;

/// A connection to a bus, or to systemd itself.
#[derive(Debug)]
pub struct Connection {
    stream: UnixStream,
    serial: u32,
    deadline: Instant,
}

/// Whether the peer is a bus, which wants to be greeted, or a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    Bus,
    Program,
}

// === impl Connection ===

impl Connection {
    pub fn open(stream: UnixStream, peer: Peer, within: Duration) -> Result<Self, DbusError> {
        let mut connection = Self { stream, serial: 0, deadline: Instant::now() + within };
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
                continue;
            }
            let values = parse_values(&message.signature, &message.body)?;
            if message.kind == METHOD_RETURN {
                return Ok(values);
            }
            let error = values.first().map_or_else(|| "unknown error".to_owned(), ToString::to_string);
            return Err(DbusError::Failed { method: method.to_owned(), error });
        }
        Err(DbusError::TimedOut)
    }

    fn authenticate(&mut self) -> Result<(), DbusError> {
        let uid = rustix::process::geteuid().as_raw().to_string();
        let hex: String = uid.bytes().map(|byte| format!("{byte:02x}")).collect();
        self.time_left()?;
        self.stream.write_all(format!("\0AUTH EXTERNAL {hex}\r\n").as_bytes()).map_err(io_error)?;
        let answer = self.line()?;
        if !answer.starts_with("OK ") {
            return Err(DbusError::Refused { answer });
        }
        self.stream.write_all(b"BEGIN\r\n").map_err(io_error)
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

    fn receive(&mut self) -> Result<Message, DbusError> {
        let mut fixed = [0; 16];
        self.read(&mut fixed)?;
        let (fields_len, body_len) = lengths(&fixed)?;
        let mut rest = vec![0; fields_len.next_multiple_of(8) + body_len];
        self.read(&mut rest)?;
        parse_message(&fixed, &rest)
    }

    fn read(&mut self, buffer: &mut [u8]) -> Result<(), DbusError> {
        let mut filled = 0;
        while filled < buffer.len() {
            self.time_left()?;
            match self.stream.read(&mut buffer[filled..]) {
                Ok(0) => return Err(DbusError::Malformed { what: "the connection ended" }),
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(io_error(error)),
            }
        }
        Ok(())
    }

    /// Sets the socket's own limits to what is left.
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
