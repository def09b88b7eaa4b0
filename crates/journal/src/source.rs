use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// A byte source that can be read at any position: a file, or a slice in memory.
///
/// It uses positioned reads instead of a memory map. A map would need `unsafe`, and a disk error or a truncation by
/// another process would kill the reader with a signal.
pub trait Source {
    /// Returns the current number of bytes; a file being written grows.
    fn size(&self) -> io::Result<u64>;

    /// Reads at `offset` into `buffer` and returns the number of bytes; 0 means the end.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;
}

// === impl Source ===

impl Source for File {
    fn size(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        FileExt::read_at(self, buffer, offset)
    }
}

impl Source for &[u8] {
    fn size(&self) -> io::Result<u64> {
        Ok(self.len() as u64)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(self.len());
        let rest = &self[start..];
        let n = rest.len().min(buffer.len());
        buffer[..n].copy_from_slice(&rest[..n]);
        Ok(n)
    }
}
