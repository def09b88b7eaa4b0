//! Bytes between two TCP sockets without passing through this process: `splice` through a pipe.
//!
//! A connection holds a pipe only while bytes are in it, so idle connections cost their two sockets and nothing else.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use tokio::io::Interest;
use tokio::net::TcpStream;

/// What a pipe may hold; a system that grants less works too.
const PIPE_SIZE: usize = 256 * 1024;
/// Pipes kept for the next connection that has something to carry.
const POOLED: usize = 64;
/// Moved by one call.
const AT_ONCE: usize = PIPE_SIZE;
/// Rounds of one direction before other tasks have their turn.
const MAX_ROUNDS: usize = 16;
/// Copied at once where nothing can be spliced.
const COPY_BUFFER: usize = 16 * 1024;

/// Empty pipes in stock.
#[derive(Clone, Debug, Default)]
pub struct Pipes(Arc<Mutex<Vec<Pipe>>>);

#[derive(Debug)]
struct Pipe {
    reader: OwnedFd,
    writer: OwnedFd,
}

/// How many bytes went each way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    pub up: u64,
    pub down: u64,
}

/// How one direction ended without an error.
enum Ended {
    Finished(u64),
    /// The kernel cannot splice these sockets; nothing is lost.
    Unspliceable,
}

/// Carries bytes both ways until both peers have said all they had to say, or one is gone.
pub async fn carry(pipes: &Pipes, client: &TcpStream, server: &TcpStream) -> io::Result<Carried> {
    let up = one_way(pipes, client, server);
    let down = one_way(pipes, server, client);
    let (up, down) = tokio::try_join!(up, down)?;
    Ok(Carried { up, down })
}

async fn one_way(pipes: &Pipes, from: &TcpStream, to: &TcpStream) -> io::Result<u64> {
    let total = match spliced(pipes, from, to).await? {
        Ended::Finished(total) => total,
        Ended::Unspliceable => copied(from, to).await?,
    };
    // The peer may be gone already, which its own direction finds out.
    let _ = rustix::net::shutdown(to, rustix::net::Shutdown::Write);
    Ok(total)
}

async fn spliced(pipes: &Pipes, from: &TcpStream, to: &TcpStream) -> io::Result<Ended> {
    let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
    let mut total = 0;
    loop {
        from.readable().await?;
        let pipe = pipes.take()?;
        for round in 0.. {
            let filled = from.try_io(Interest::READABLE, || {
                splice(from, None, &pipe.writer, None, AT_ONCE, flags).map_err(io::Error::from)
            });
            let mut inside = match filled {
                Ok(0) => {
                    pipes.put(pipe);
                    return Ok(Ended::Finished(total));
                }
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::InvalidInput && total == 0 => {
                    return Ok(Ended::Unspliceable);
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
    }
}

async fn copied(from: &TcpStream, to: &TcpStream) -> io::Result<u64> {
    let mut buffer = vec![0; COPY_BUFFER];
    let mut total = 0;
    loop {
        from.readable().await?;
        let count = match from.try_read(&mut buffer) {
            Ok(0) => return Ok(total),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error),
        };
        total += count as u64;
        let mut rest = &buffer[..count];
        while !rest.is_empty() {
            to.writable().await?;
            match to.try_write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => rest = &rest[written..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }
}

// === impl Pipes ===

impl Pipes {
    fn take(&self) -> io::Result<Pipe> {
        if let Some(pipe) = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop() {
            return Ok(pipe);
        }
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        // Refused beyond a user's share of pipe memory: then it is a small pipe.
        let _ = fcntl_setpipe_size(&writer, PIPE_SIZE);
        Ok(Pipe { reader, writer })
    }

    /// Only empty pipes come back: one that holds bytes belongs to its connection.
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

    /// Two ends of a connection.
    async fn connection() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (near, listener.accept().await.unwrap().0)
    }

    #[tokio::test]
    async fn bytes_and_half_closes_go_both_ways() {
        let pipes = Pipes::default();
        let ((mut client, near), (far, mut server)) = (connection().await, connection().await);
        let carried = tokio::spawn({
            let pipes = pipes.clone();
            async move { carry(&pipes, &near, &far).await }
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
        // The client has finished; the server still may answer.
        server.write_all(b"thanks").await.unwrap();
        drop(server);
        assert_eq!(writing.await.unwrap(), "thanks");
        assert_eq!(carried.await.unwrap().unwrap(), Carried { up: 3_000_000, down: 6 });
        assert!(!pipes.0.lock().unwrap().is_empty(), "pipes come back to the stock");
    }

    #[tokio::test]
    async fn a_peer_that_is_gone_ends_it() {
        let ((client, near), (far, mut server)) = (connection().await, connection().await);
        rustix::net::sockopt::set_socket_linger(&client, Some(std::time::Duration::ZERO)).unwrap();
        drop(client);
        let ended = carry(&Pipes::default(), &near, &far).await;
        assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        drop((near, far));
        assert_eq!(server.read(&mut [0]).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn where_nothing_can_be_spliced_bytes_are_copied() {
        let ((mut client, near), (far, mut server)) = (connection().await, connection().await);
        client.write_all(b"hello").await.unwrap();
        drop(client);
        assert_eq!(copied(&near, &far).await.unwrap(), 5);
        drop((near, far));
        let mut received = String::new();
        server.read_to_string(&mut received).await.unwrap();
        assert_eq!(received, "hello");
    }
}
