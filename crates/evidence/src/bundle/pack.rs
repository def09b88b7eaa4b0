//! Parallel compression in independent blocks.
//!
//! Each block is a complete gzip member or zstd frame; readers of both formats accept a sequence of them as
//! one stream. Blocks are therefore compressed concurrently in bounded memory, and truncation loses only the
//! last block.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Arc, Mutex};
use std::thread;

use flate2::Compression;
use flate2::write::GzEncoder;

/// Larger blocks hardly improve compression. Smaller ones reduce throughput but lose less when a stream is
/// truncated.
const BLOCK: usize = 512 << 10;

/// Minimum block size at the end of a file: early blocks let collected data leave the machine soon.
const SMALL_BLOCK: usize = 128 << 10;

/// Thread limit, so that compression leaves CPU time for the node's workload.
const MAX_THREADS: usize = 4;

/// zstd's default level: faster than any disk or network, within a few percent of the best ratio for logs.
const ZSTD_LEVEL: i32 = 3;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Packing {
    #[default]
    Gzip,
    Zstd,
}

/// Compresses the data written to it.
///
/// Call [`finish`](Self::finish) at the end: otherwise buffered data is lost.
pub(super) struct Packer<W> {
    out: W,
    packing: Packing,
    block: Vec<u8>,
    jobs: SyncSender<Job>,
    /// Pending results of the threads, in order.
    waiting: VecDeque<Receiver<io::Result<Vec<u8>>>>,
    threads: usize,
    written: u64,
}

struct Job {
    packing: Packing,
    block: Vec<u8>,
    done: SyncSender<io::Result<Vec<u8>>>,
}

// === impl Packing ===

impl Packing {
    /// Returns the extension of a bundle's file name.
    pub fn extension(self) -> &'static str {
        match self {
            Self::Gzip => "tar.gz",
            Self::Zstd => "tar.zst",
        }
    }

    fn pack(self, block: &[u8]) -> io::Result<Vec<u8>> {
        match self {
            Self::Gzip => {
                let mut encoder = GzEncoder::new(Vec::with_capacity(block.len() / 4), Compression::default());
                encoder.write_all(block)?;
                encoder.finish()
            }
            Self::Zstd => zstd::bulk::compress(block, ZSTD_LEVEL),
        }
    }
}

// === impl Packer ===

impl<W: Write> Packer<W> {
    pub(super) fn new(out: W, packing: Packing) -> Self {
        let threads = thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS);
        let (jobs, queue) = mpsc::sync_channel::<Job>(threads);
        let queue = Arc::new(Mutex::new(queue));
        for _ in 0..threads {
            let queue = Arc::clone(&queue);
            // The threads end when the packer is dropped, because that closes the queue.
            thread::spawn(move || {
                while let Some(job) = queue.lock().ok().and_then(|queue| queue.recv().ok()) {
                    // The send fails only if the packer was dropped; the result is then not needed.
                    let _ = job.done.send(job.packing.pack(&job.block));
                }
            });
        }
        Self {
            out,
            packing,
            block: Vec::with_capacity(BLOCK),
            jobs,
            waiting: VecDeque::new(),
            threads,
            written: 0,
        }
    }

    /// Marks the end of a file.
    pub(super) fn end_of_file(&mut self) -> io::Result<()> {
        if self.block.len() >= SMALL_BLOCK { self.submit() } else { Ok(()) }
    }

    /// Compresses and writes all buffered data, and waits for completion.
    pub(super) fn empty(&mut self) -> io::Result<()> {
        if !self.block.is_empty() {
            self.submit()?;
        }
        while let Some(packed) = self.waiting.pop_front() {
            self.emit(&packed)?;
        }
        self.out.flush()
    }

    pub(super) fn finish(mut self) -> io::Result<(W, u64)> {
        self.empty()?;
        Ok((self.out, self.written))
    }

    fn submit(&mut self) -> io::Result<()> {
        let block = std::mem::replace(&mut self.block, Vec::with_capacity(BLOCK));
        let (done, packed) = mpsc::sync_channel(1);
        self.jobs.send(Job { packing: self.packing, block, done }).map_err(|_| ended())?;
        self.waiting.push_back(packed);
        // Up to one block per thread stays in flight; older blocks are waited for.
        while self.waiting.len() > self.threads
            && let Some(packed) = self.waiting.pop_front()
        {
            self.emit(&packed)?;
        }
        Ok(())
    }

    fn emit(&mut self, packed: &Receiver<io::Result<Vec<u8>>>) -> io::Result<()> {
        let packed = packed.recv().map_err(|_| ended())??;
        self.out.write_all(&packed)?;
        self.written += packed.len() as u64;
        Ok(())
    }
}

impl<W: Write> Write for Packer<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(BLOCK - self.block.len());
        self.block.extend_from_slice(&bytes[..taken]);
        if self.block.len() == BLOCK {
            self.submit()?;
        }
        Ok(taken)
    }

    /// Does nothing: blocks end when they are full or at the end of a file.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn ended() -> io::Error {
    io::Error::other("a packing thread ended early")
}
