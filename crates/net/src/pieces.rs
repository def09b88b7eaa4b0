use std::io;

use bytes::Bytes;
use tokio::sync::mpsc::Sender;

/// Minimum size of a piece before it is sent.
const PIECE: usize = 64 * 1024;

/// An item of the channel: data, or the error that ends it.
pub type Piece = Result<Bytes, Box<dyn std::error::Error + Send + Sync>>;

/// A blocking writer into a channel that sends large pieces. It blocks while the receiver is behind.
#[derive(Debug)]
pub struct Pieces {
    sender: Sender<Piece>,
    held: Vec<u8>,
}

// === impl Pieces ===

impl Pieces {
    pub fn new(sender: Sender<Piece>) -> Self {
        Self { sender, held: Vec::with_capacity(PIECE) }
    }

    fn send(&mut self) -> io::Result<()> {
        if self.held.is_empty() {
            return Ok(());
        }
        let piece = std::mem::replace(&mut self.held, Vec::with_capacity(PIECE));
        self.sender.blocking_send(Ok(piece.into())).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

impl io::Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.held.extend_from_slice(bytes);
        if self.held.len() >= PIECE {
            self.send()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.send()
    }
}
