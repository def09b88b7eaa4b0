use std::io::{self, IoSlice, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use super::CriError;
use super::call::{Call, Progress};
use super::protobuf::push_bytes;
use super::runtime::{Container, Image, Pod, Status, Version};

const CHUNK: usize = 16 << 10;
/// Maximum number of slices per write.
const SLICES: usize = 4;

/// A connection to a runtime. It serves one call and is closed after it.
#[derive(Debug)]
pub struct Connection {
    stream: UnixStream,
    deadline: Instant,
}

// === impl Connection ===

impl Connection {
    pub fn new(stream: UnixStream, within: Duration) -> Self {
        Self { stream, deadline: Instant::now() + within }
    }

    pub fn version(self) -> Result<Version, CriError> {
        Version::decode(&self.call("runtime.v1.RuntimeService", "Version", &[])?)
    }

    pub fn status(self) -> Result<Status, CriError> {
        // `verbose`: includes the state of the network configuration.
        Status::decode(&self.call("runtime.v1.RuntimeService", "Status", b"\x08\x01")?)
    }

    pub fn pods(self) -> Result<Vec<Pod>, CriError> {
        Pod::decode_list(&self.call("runtime.v1.RuntimeService", "ListPodSandbox", &[])?)
    }

    pub fn containers(self) -> Result<Vec<Container>, CriError> {
        Container::decode_list(&self.call("runtime.v1.RuntimeService", "ListContainers", &[])?)
    }

    pub fn container(self, id: &str) -> Result<Container, CriError> {
        let mut question = Vec::new();
        push_bytes(&mut question, 1, id.as_bytes());
        Container::decode_status(&self.call("runtime.v1.RuntimeService", "ContainerStatus", &question)?)
    }

    pub fn images(self) -> Result<Vec<Image>, CriError> {
        Image::decode_list(&self.call("runtime.v1.ImageService", "ListImages", &[])?)
    }

    fn call(mut self, service: &str, method: &'static str, question: &[u8]) -> Result<Vec<u8>, CriError> {
        let mut call = Call::new(&format!("/{service}/{method}"), question);
        let mut buffer = vec![0; CHUNK];
        loop {
            self.send(&mut call)?;
            self.set_limits()?;
            let count = match self.stream.read(&mut buffer) {
                Ok(0) => return Err(CriError::Malformed { what: "the end of the connection" }),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(io_error(error)),
            };
            if call.push(&buffer[..count], Instant::now())? == Progress::Done {
                return call.finish(method);
            }
        }
    }

    fn send(&mut self, call: &mut Call) -> Result<(), CriError> {
        let output = call.output();
        while !output.is_empty() {
            self.set_limits()?;
            let mut slices = [IoSlice::new(&[]); SLICES];
            let count = output.slices(&mut slices);
            match self.stream.write_vectored(&slices[..count]) {
                Ok(written) => output.advance(written),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(io_error(error)),
            }
        }
        Ok(())
    }

    /// Sets the socket's timeouts to the remaining time.
    fn set_limits(&mut self) -> Result<(), CriError> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(CriError::TimedOut);
        }
        let set =
            self.stream.set_read_timeout(Some(left)).and_then(|()| self.stream.set_write_timeout(Some(left)));
        set.map_err(io_error)
    }
}

fn io_error(source: io::Error) -> CriError {
    match source.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => CriError::TimedOut,
        _ => CriError::Io { source },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runtime_that_is_silent_or_hangs_up_is_told() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let result = Connection::new(ours, Duration::from_millis(50)).version();
        assert!(matches!(result, Err(CriError::TimedOut)), "{result:?}");
        drop(theirs);
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        assert!(Connection::new(ours, Duration::from_secs(10)).pods().is_err());
    }
}
