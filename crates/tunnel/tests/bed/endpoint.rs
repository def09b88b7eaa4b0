use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use anyhow::Result;

/// An endpoint of tunnels, with a thread for each connection.
pub struct Endpoint {
    address: SocketAddr,
    received: Arc<Mutex<Vec<usize>>>,
}

impl Endpoint {
    /// Starts an endpoint that echoes.
    pub fn echo() -> Result<Self> {
        Self::start(|mut socket, _| {
            let mut reader = socket.try_clone().unwrap();
            let _ = std::io::copy(&mut reader, &mut socket);
        })
    }

    /// Starts an endpoint that sends first, then echoes.
    pub fn banner(text: &'static str) -> Result<Self> {
        Self::start(move |mut socket, _| {
            let mut reader = socket.try_clone().unwrap();
            if socket.write_all(text.as_bytes()).is_ok() {
                let _ = std::io::copy(&mut reader, &mut socket);
            }
        })
    }

    /// Starts an endpoint that waits for data, sends `length` bytes and closes.
    pub fn farewell(length: usize) -> Result<Self> {
        Self::start(move |mut socket, _| {
            let mut word = [0; 2];
            if socket.read_exact(&mut word).is_ok() {
                let _ = socket.write_all(&vec![7; length]);
            }
        })
    }

    /// Starts an endpoint that reads to the end and records the number of bytes.
    pub fn sink() -> Result<Self> {
        Self::start(|mut socket, received| {
            let mut buffer = vec![0; 4096];
            let mut total = 0;
            while let Ok(length) = socket.read(&mut buffer) {
                if length == 0 {
                    break;
                }
                total += length;
            }
            received.lock().unwrap().push(total);
        })
    }

    /// Starts an endpoint that sends without end.
    pub fn source() -> Result<Self> {
        Self::start(|mut socket, _| {
            let block = vec![42; 64 * 1024];
            while socket.write_all(&block).is_ok() {}
        })
    }

    /// Starts an endpoint that accepts and then neither reads nor writes, until the test ends.
    pub fn stalled() -> Result<Self> {
        Self::start(|socket, _| {
            std::thread::park();
            drop(socket);
        })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the number of bytes of each ended connection.
    pub fn received(&self) -> Vec<usize> {
        self.received.lock().unwrap().clone()
    }

    fn start(serve: impl Fn(TcpStream, Arc<Mutex<Vec<usize>>>) + Send + Sync + 'static) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let received: Arc<Mutex<Vec<usize>>> = Arc::default();
        let (serve, shared) = (Arc::new(serve), Arc::clone(&received));
        std::thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let (serve, received) = (Arc::clone(&serve), Arc::clone(&shared));
                std::thread::spawn(move || serve(socket, received));
            }
        });
        Ok(Self { address, received })
    }
}
