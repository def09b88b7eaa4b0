//! A plain GET request to a service on this machine.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::{NOT_FROM_OUTSIDE, Source};
use crate::collect::host::Host;
use crate::collect::piece::Trouble;
use crate::collect::sink::Sink;

/// Health responses are one word; longer responses are truncated.
const MAX_ANSWER: usize = 64 << 10;

/// A local service that takes longer will not respond.
const PATIENCE: Duration = Duration::from_secs(5);

pub(super) struct Http {
    pub(super) to: String,
    pub(super) address: String,
    pub(super) path: String,
}

// === impl Http ===

impl Source for Http {
    fn collect(&self, host: &Host, sink: &mut Sink) -> Result<(), Trouble> {
        if !host.is_this_machine() {
            return Err(Trouble::Skipped(NOT_FROM_OUTSIDE));
        }
        let address: SocketAddr = self
            .address
            .parse()
            .map_err(|_| Trouble::Failed(format!("`{}` is not an address", self.address)))?;
        let patience = PATIENCE.min(sink.time_left()?);
        let started = Instant::now();
        let answer = get(address, &self.path, patience);
        let elapsed = started.elapsed().as_millis();
        let url = format!("http://{address}{}", self.path);
        let text = match answer {
            Ok(answer) => format!("GET {url}: answered after {elapsed} ms\n{answer}\n"),
            // A missing response is a valid observation.
            Err(error) => format!("GET {url}: no answer after {elapsed} ms: {error}\n"),
        };
        sink.text(&self.to, &url, &text);
        Ok(())
    }
}

fn get(address: SocketAddr, path: &str, patience: Duration) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, patience)?;
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    let answer = ask(&mut stream, address, path, MAX_ANSWER, patience)?;
    Ok(String::from_utf8_lossy(&answer).replace('\r', ""))
}

/// Sends a GET request and returns the beginning of the raw answer.
///
/// Not an HTTP client: the bytes are evidence of what listens there, even if it is something else. The entire answer
/// has a deadline, because a service may send single bytes.
pub(super) fn ask(
    stream: &mut (impl Read + Write),
    host: impl fmt::Display,
    path: &str,
    limit: usize,
    patience: Duration,
) -> io::Result<Vec<u8>> {
    let close = "Connection: close\r\nUser-Agent: landfall";
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n{close}\r\n\r\n").as_bytes())?;
    let deadline = Instant::now() + patience;
    let mut answer = Vec::new();
    let mut buffer = [0; 4096];
    while answer.len() < limit && Instant::now() < deadline {
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => answer.extend_from_slice(&buffer[..count]),
            // Many servers close without a TLS close notification; the data received so far is valid.
            Err(_) if !answer.is_empty() => break,
            Err(error) => return Err(error),
        }
    }
    Ok(answer)
}
