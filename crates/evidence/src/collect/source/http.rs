//! A plain GET request to a service on this machine.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::{NOT_FROM_OUTSIDE, Source};
use crate::collect::host::Host;
use crate::collect::piece::Trouble;
use crate::collect::sink::Sink;

/// Health responses are one word; longer responses are truncated.
const MAX_ANSWER: u64 = 64 << 10;

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

fn get(address: SocketAddr, path: &str, patience: Duration) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, patience)?;
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    stream.write_all(
        format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").as_bytes(),
    )?;
    let mut answer = Vec::new();
    let deadline = Instant::now() + patience;
    let mut buffer = [0; 4096];
    // The entire response has a deadline: a service that sends single bytes would otherwise block
    // indefinitely.
    while (answer.len() as u64) < MAX_ANSWER && Instant::now() < deadline {
        match stream.read(&mut buffer)? {
            0 => break,
            count => answer.extend_from_slice(&buffer[..count]),
        }
    }
    Ok(String::from_utf8_lossy(&answer).replace('\r', ""))
}
