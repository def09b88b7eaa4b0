//! A byte relay between two TCP sockets. It copies small amounts, which is fastest for them, and moves large amounts by
//! `splice` through a pipe, without copying them to user space.
//!
//! A connection uses a pipe only while it contains bytes, so idle connections need only their two sockets.

use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, ready};

use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use tokio::io::{AsyncRead as _, AsyncWriteExt as _, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};

/// Capacity of a pipe; a system that grants less works, too.
const PIPE_SIZE: usize = 256 * 1024;
/// Maximum number of pooled pipes.
const POOLED: usize = 64;
/// Bytes moved by one call.
const AT_ONCE: usize = PIPE_SIZE;
/// Rounds of one direction before other tasks run.
const MAX_ROUNDS: usize = 16;
/// Bytes copied per read, on the stack. A full buffer indicates that more data follows, so that a pipe is worth its
/// system calls.
const LITTLE: usize = 16 * 1024;

/// A pool of empty pipes.
#[derive(Clone, Debug, Default)]
pub struct Pipes(Arc<Mutex<Vec<Pipe>>>);

#[derive(Debug)]
struct Pipe {
    reader: OwnedFd,
    writer: OwnedFd,
}

/// Number of bytes in each direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    pub up: u64,
    pub down: u64,
}

/// Result of splicing.
enum Flow {
    /// This many bytes were moved, and no more are available now.
    Dry(u64),
    Ended(u64),
    /// The kernel cannot splice these sockets; no data is lost.
    Unspliceable,
}

/// Relays bytes in both directions until both peers have finished, or one has failed.
pub async fn carry(pipes: &Pipes, client: &mut TcpStream, server: &mut TcpStream) -> io::Result<Carried> {
    let ((from_client, to_client), (from_server, to_server)) = (client.split(), server.split());
    let up = one_way(pipes, from_client, to_server);
    let down = one_way(pipes, from_server, to_client);
    let (up, down) = tokio::try_join!(up, down)?;
    Ok(Carried { up, down })
}

async fn one_way(pipes: &Pipes, mut from: ReadHalf<'_>, mut to: WriteHalf<'_>) -> io::Result<u64> {
    let (mut total, mut spliceable) = (0, true);
    loop {
        let count = copied(&mut from, &mut to).await?;
        total += count as u64;
        if count == 0 {
            break;
        }
        if count < LITTLE || !spliceable {
            continue;
        }
        match spliced(pipes, from.as_ref(), to.as_ref()).await? {
            Flow::Dry(count) => total += count,
            Flow::Ended(count) => {
                total += count;
                break;
            }
            Flow::Unspliceable => spliceable = false,
        }
    }
    // The peer may have disconnected, which its own direction detects.
    let _ = rustix::net::shutdown(to.as_ref(), rustix::net::Shutdown::Write);
    Ok(total)
}

/// Copies available bytes, up to `LITTLE`. Returns 0 at the end of the stream.
async fn copied(from: &mut ReadHalf<'_>, to: &mut WriteHalf<'_>) -> io::Result<usize> {
    let mut rest = Vec::new();
    let count = poll_fn(|cx| {
        let mut room = [MaybeUninit::uninit(); LITTLE];
        let mut read = ReadBuf::uninit(&mut room);
        ready!(Pin::new(&mut *from).poll_read(cx, &mut read))?;
        let read = read.filled();
        if !read.is_empty() {
            // Allocates only for bytes that the destination does not accept immediately.
            match to.try_write(read) {
                Ok(written) => rest.extend_from_slice(&read[written..]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => rest.extend_from_slice(read),
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        Poll::Ready(Ok(read.len()))
    })
    .await?;
    if !rest.is_empty() {
        to.write_all(&rest).await?;
    }
    Ok(count)
}

/// Splices while data is available.
async fn spliced(pipes: &Pipes, from: &TcpStream, to: &TcpStream) -> io::Result<Flow> {
    let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
    let mut total = 0;
    loop {
        // Without descriptors for a pipe, the caller continues by copying.
        let Ok(pipe) = pipes.take() else { return Ok(Flow::Dry(total)) };
        let before = total;
        for round in 0.. {
            let filled = from.try_io(Interest::READABLE, || {
                splice(from, None, &pipe.writer, None, AT_ONCE, flags).map_err(io::Error::from)
            });
            let mut inside = match filled {
                Ok(0) => {
                    pipes.put(pipe);
                    return Ok(Flow::Ended(total));
                }
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::InvalidInput && total == 0 => {
                    return Ok(Flow::Unspliceable);
                }
                Err(error) => return Err(error),
            };
            total += inside as u64;
            while inside > 0 {
                let moved = to.try_io(Interest::WRITABLE, || {
                    splice(&pipe.reader, None, to, None, inside, flags).map_err(io::Error::from)
                });
                match moved {
                    Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                    Ok(count) => inside -= count,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => to.writable().await?,
                    Err(error) => return Err(error),
                }
            }
            if round >= MAX_ROUNDS {
                tokio::task::yield_now().await;
                break;
            }
        }
        pipes.put(pipe);
        if total - before < LITTLE as u64 {
            return Ok(Flow::Dry(total));
        }
        from.readable().await?;
    }
}

// === impl Pipes ===

impl Pipes {
    fn take(&self) -> io::Result<Pipe> {
        if let Some(pipe) = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop() {
            return Ok(pipe);
        }
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        // The kernel refuses this beyond the user's limit for pipe memory; the pipe then stays small.
        let _ = fcntl_setpipe_size(&writer, PIPE_SIZE);
        Ok(Pipe { reader, writer })
    }

    /// Returns an empty pipe to the pool; a pipe with bytes belongs to its connection.
    fn put(&self, pipe: Pipe) {
        let mut pipes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if pipes.len() < POOLED {
            pipes.push(pipe);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    /// Returns the two ends of a connection.
    async fn connection() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (near, listener.accept().await.unwrap().0)
    }

    #[tokio::test]
    async fn bytes_and_half_closes_go_both_ways() {
        let pipes = Pipes::default();
        let ((mut client, mut near), (mut far, mut server)) = (connection().await, connection().await);
        let carried = tokio::spawn({
            let pipes = pipes.clone();
            async move { carry(&pipes, &mut near, &mut far).await }
        });
        let sent: Vec<u8> = (0..3_000_000_u32).map(|number| (number % 251) as u8).collect();
        let expected = sent.clone();
        let writing = tokio::spawn(async move {
            client.write_all(&sent).await.unwrap();
            client.shutdown().await.unwrap();
            let mut answer = String::new();
            client.read_to_string(&mut answer).await.unwrap();
            answer
        });
        let mut received = Vec::new();
        server.read_to_end(&mut received).await.unwrap();
        assert!(received == expected);
        // The client has finished, but the server may still respond.
        server.write_all(b"thanks").await.unwrap();
        drop(server);
        assert_eq!(writing.await.unwrap(), "thanks");
        assert_eq!(carried.await.unwrap().unwrap(), Carried { up: 3_000_000, down: 6 });
        assert!(!pipes.0.lock().unwrap().is_empty(), "pipes come back to the stock");
    }

    #[tokio::test]
    async fn a_peer_that_is_gone_ends_it() {
        let ((client, mut near), (mut far, mut server)) = (connection().await, connection().await);
        rustix::net::sockopt::set_socket_linger(&client, Some(std::time::Duration::ZERO)).unwrap();
        drop(client);
        let ended = carry(&Pipes::default(), &mut near, &mut far).await;
        assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        drop((near, far));
        assert_eq!(server.read(&mut [0]).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn a_little_is_copied_and_a_slow_reader_gets_all() {
        let pipes = Pipes::default();
        let ((mut client, mut near), (mut far, mut server)) = (connection().await, connection().await);
        // A small buffer, so that the reader blocks the writer.
        rustix::net::sockopt::set_socket_send_buffer_size(&far, 64 * 1024).unwrap();
        let carrying = tokio::spawn({
            let pipes = pipes.clone();
            async move { carry(&pipes, &mut near, &mut far).await }
        });
        client.write_all(b"hello").await.unwrap();
        let mut piece = [0; 5];
        server.read_exact(&mut piece).await.unwrap();
        assert_eq!((&piece, pipes.0.lock().unwrap().len()), (b"hello", 0), "a little needs no pipe");
        let sent: Vec<u8> = (0..2_000_000_u32).map(|number| (number % 249) as u8).collect();
        let writing = tokio::spawn({
            let sent = sent.clone();
            async move {
                client.write_all(&sent).await.unwrap();
                client
            }
        });
        let mut received = vec![0; sent.len()];
        server.read_exact(&mut received).await.unwrap();
        assert!(received == sent);
        drop((writing.await.unwrap(), server));
        assert_eq!(carrying.await.unwrap().unwrap().up, 2_000_005);
    }
}
