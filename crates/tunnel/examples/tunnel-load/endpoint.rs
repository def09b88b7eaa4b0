//! The endpoints of the tunnels.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Result;
use rustix::net::{RecvFlags, recv};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, Interest};
use tokio::net::{TcpListener, TcpStream};

const BLOCK: usize = 128 * 1024;

/// Starts an endpoint that echoes.
pub(crate) async fn echo() -> Result<SocketAddr> {
    start(|mut socket| async move {
        let mut buffer = vec![0; 4096];
        while let Ok(length @ 1..) = socket.read(&mut buffer).await {
            if socket.write_all(&buffer[..length]).await.is_err() {
                return;
            }
        }
    })
    .await
}

/// Starts an endpoint that sends without end. The caller may use the counter.
pub(crate) async fn source() -> Result<(SocketAddr, Arc<AtomicUsize>)> {
    let address = start(|mut socket| async move {
        let block = vec![42; BLOCK];
        while socket.write_all(&block).await.is_ok() {}
    })
    .await?;
    Ok((address, Arc::default()))
}

/// Starts an endpoint that counts the bytes it receives.
pub(crate) async fn sink() -> Result<(SocketAddr, Arc<AtomicUsize>)> {
    let received = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&received);
    let address = start(move |socket| {
        let received = Arc::clone(&counter);
        async move {
            // The kernel discards the data without a copy, because the load generator competes with the tunnel for CPU.
            let mut buffer = vec![0; BLOCK];
            let mut discard = || Ok(recv(&socket, &mut buffer[..], RecvFlags::TRUNC)?.1);
            while let Ok(length @ 1..) = socket.async_io(Interest::READABLE, &mut discard).await {
                received.fetch_add(length, Ordering::Relaxed);
            }
        }
    })
    .await?;
    Ok((address, received))
}

/// Starts an endpoint that reads slowly. It counts connections that received `whole` bytes, and connections that ended.
pub(crate) async fn slow_sink(whole: usize) -> Result<(SocketAddr, Arc<AtomicUsize>, Arc<AtomicUsize>)> {
    let (complete, ended) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let counters = (Arc::clone(&complete), Arc::clone(&ended));
    let address = start(move |mut socket| {
        let (complete, ended) = (Arc::clone(&counters.0), Arc::clone(&counters.1));
        async move {
            let (mut buffer, mut total) = (vec![0; 32 * 1024], 0);
            while let Ok(length @ 1..) = socket.read(&mut buffer).await {
                total += length;
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            complete.fetch_add(usize::from(total == whole), Ordering::Relaxed);
            ended.fetch_add(1, Ordering::Relaxed);
        }
    })
    .await?;
    Ok((address, complete, ended))
}

/// Starts an endpoint that accepts and reads nothing.
pub(crate) async fn stalled() -> Result<SocketAddr> {
    start(|socket| async move {
        let _held = socket;
        std::future::pending::<()>().await;
    })
    .await
}

async fn start<F: Future<Output = ()> + Send + 'static>(
    serve: impl Fn(TcpStream) -> F + Send + 'static,
) -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let _ = socket.set_nodelay(true);
            tokio::spawn(serve(socket));
        }
    });
    Ok(address)
}
