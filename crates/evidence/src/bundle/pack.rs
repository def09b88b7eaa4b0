//! Compression on several threads, in blocks that stand alone.
//!
//! Every block is a whole gzip member or a whole zstd frame; readers of both formats read a row of them as one stream. So
//! blocks are packed side by side in bounded memory, and of a stream that is cut only the last block is lost.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Arc, Mutex};
use std::thread;

use flate2::Compression;
use flate2::write::GzEncoder;

/// Larger blocks hardly compress better; smaller ones cost throughput and lose less when a stream is cut.
const BLOCK: usize = 512 << 10;

/// Between two files a block may end early, so that what is collected leaves the machine soon.
const SMALL_BLOCK: usize = 128 << 10;

/// More threads than this would take the node away from what it is there for.
const MAX_THREADS: usize = 4;

/// zstd's own default: faster than any disk or network, within a few per cent of the best ratio for logs.
const ZSTD_LEVEL: i32 = 3;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Packing {
    #[default]
    Gzip,
    Zstd,
}

/// Packs what is written to it. [`finish`](Self::finish) must be called: what is still held is lost otherwise.
pub(super) struct Packer<W> {
    out: W,
    packing: Packing,
    block: Vec<u8>,
    jobs: SyncSender<Job>,
    /// What the threads will give, in order.
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
    /// What a bundle's file name ends with.
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
            // They end when the packer is dropped and its end of the queue with it.
            thread::spawn(move || {
                while let Some(job) = queue.lock().ok().and_then(|queue| queue.recv().ok()) {
                    // Nobody waits for it any more when the packer is gone.
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

    /// Says that a file has ended here.
    pub(super) fn end_of_file(&mut self) -> io::Result<()> {
        if self.block.len() >= SMALL_BLOCK { self.submit() } else { Ok(()) }
    }

    /// Packs and writes everything that is held, and waits until it has left.
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
        // Up to one block per thread is left in work; whatever is older is waited for.
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

    /// Does nothing: blocks end where they are full or where a file ends.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn ended() -> io::Error {
    io::Error::other("a packing thread ended early")
}
