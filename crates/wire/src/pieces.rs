use std::io;

use bytes::Bytes;
use tokio::sync::mpsc::Sender;

/// What is worth sending at once.
const PIECE: usize = 64 * 1024;

/// What comes out at the other end: a piece, or why there will be no more.
pub type Piece = Result<Bytes, Box<dyn std::error::Error + Send + Sync>>;

/// Writes into a channel, in pieces worth sending. For threads that may block: what the reader does not take, is not
/// written yet.
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
