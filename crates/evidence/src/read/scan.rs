//! Scanning of one source of lines: read here, scanned on all cores, added in line order.

use std::collections::BTreeMap;
use std::fs::Metadata;
use std::io;
use std::sync::{Mutex, mpsc};
use std::thread;

use landfall_diagnose::{Case, Engine, Scan, SourceId, Stream};
use memchr::memchr_iter;

use super::lines::{CHUNK, Chunk, Chunks};
use super::owner::stream_of_file;

/// Chunks in flight per scanning thread: enough to keep it busy, few enough to bound memory.
const QUEUED_PER_THREAD: usize = 2;

struct Job {
    sequence: u64,
    first_line: u64,
    chunk: Chunk,
}

/// Completed scans. Threads finish in any order; the case requires line order.
#[derive(Default)]
struct Finished {
    early: BTreeMap<u64, Scan>,
    wanted: u64,
}

/// Reads all lines and adds them to the case.
///
/// Fails only if nothing could be read; a later failure is recorded with the source.
pub(super) fn lines(
    engine: &Engine,
    case: &mut Case<'_>,
    name: &str,
    metadata: Option<&Metadata>,
    mut chunks: impl Chunks,
    seen: &dyn Fn(u64),
) -> io::Result<()> {
    let (first, bytes) = chunks.next()?.unwrap_or_default();
    seen(bytes);
    let stream = match metadata {
        Some(metadata) => stream_of_file(name, &first.bytes, metadata),
        None => Stream::sniff(name, &first.bytes),
    };
    let source = case.add_source(name, stream.kind.name());
    case.add(source, scan(engine, &stream, 1, &first));
    tracing::info!(source = name, kind = stream.kind.name(), "Read a source.");
    // Most logs fit into one chunk and need no threads.
    let failure = match chunks.next() {
        Ok(None) => None,
        Ok(Some((second, bytes))) => {
            seen(bytes);
            many_chunks(
                engine,
                case,
                source,
                &stream,
                1 + count_lines(&first.bytes),
                second,
                &mut chunks,
                seen,
            )
        }
        Err(error) => Some(error),
    };
    if let Some(error) = failure {
        case.fail(source, format!("incomplete: {error}"));
    } else if chunks.cut() > 0 {
        let (cut, limit) = (chunks.cut(), CHUNK >> 20);
        case.fail(source, format!("cut: only the first {limit} MiB of {cut} longer line(s) was searched"));
    }
    Ok(())
}

/// Scans the rest of a long source on all cores and returns the failure that ended it early, if any.
#[expect(clippy::too_many_arguments, reason = "the second half of `lines`, with its state")]
fn many_chunks(
    engine: &Engine,
    case: &mut Case<'_>,
    source: SourceId,
    stream: &Stream,
    mut first_line: u64,
    mut chunk: Chunk,
    chunks: &mut impl Chunks,
    seen: &dyn Fn(u64),
) -> Option<io::Error> {
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        let (jobs, waiting) = mpsc::sync_channel::<Job>(threads * QUEUED_PER_THREAD);
        // The channel is unbounded but short: there are no more results than jobs, and results are received
        // after each job is sent.
        let (results, scans) = mpsc::channel::<(u64, Scan)>();
        let waiting = std::sync::Arc::new(Mutex::new(waiting));
        for _ in 0..threads {
            let (results, waiting) = (results.clone(), std::sync::Arc::clone(&waiting));
            scope.spawn(move || {
                while let Some(job) = waiting.lock().ok().and_then(|waiting| waiting.recv().ok()) {
                    let scan = scan(engine, stream, job.first_line, &job.chunk);
                    if results.send((job.sequence, scan)).is_err() {
                        return;
                    }
                }
            });
        }
        drop((results, waiting));
        let mut finished = Finished::default();
        let mut failure = None;
        for sequence in 0.. {
            let lines = count_lines(&chunk.bytes);
            if jobs.send(Job { sequence, first_line, chunk }).is_err() {
                return Some(io::Error::other("the scanning threads ended early"));
            }
            first_line += lines;
            for scan in scans.try_iter() {
                finished.add(case, source, scan);
            }
            match chunks.next() {
                Ok(Some((next, bytes))) => {
                    seen(bytes);
                    chunk = next;
                }
                Ok(None) => break,
                Err(error) => {
                    failure = Some(error);
                    break;
                }
            }
        }
        drop(jobs);
        for scan in scans {
            finished.add(case, source, scan);
        }
        failure
    })
}

fn scan(engine: &Engine, stream: &Stream, first_line: u64, chunk: &Chunk) -> Scan {
    match &chunk.origins {
        Some(origins) => engine.scan_journal(stream, first_line, &chunk.bytes, origins),
        None => engine.scan(stream, first_line, &chunk.bytes),
    }
}

/// Counts lines; a chunk without a final line feed ends with an incomplete line.
fn count_lines(chunk: &[u8]) -> u64 {
    let ended = memchr_iter(b'\n', chunk).count() as u64;
    if chunk.last().is_some_and(|byte| *byte != b'\n') { ended + 1 } else { ended }
}

// === impl Finished ===

impl Finished {
    fn add(&mut self, case: &mut Case<'_>, source: SourceId, (sequence, scan): (u64, Scan)) {
        self.early.insert(sequence, scan);
        while let Some(scan) = self.early.remove(&self.wanted) {
            case.add(source, scan);
            self.wanted += 1;
        }
    }
}
