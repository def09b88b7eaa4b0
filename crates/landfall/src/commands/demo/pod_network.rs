//! The simulated pod network: a webhook, and the connection to it through the tunnel.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UnixStream};

/// Timeout of one attempt.
const PATIENCE: Duration = Duration::from_secs(10);
/// Limit for a request or an answer; those of this demo are far shorter.
const LONGEST: usize = 4096;

/// The answer of the webhook.
pub(super) const ANSWER: &str = "{\"allowed\":true}";

/// Starts a webhook on loopback, which runs until the runtime ends.
pub(super) async fn webhook() -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await.context("listen as a webhook")?;
    let address = listener.local_addr().context("listen as a webhook")?;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            // A client whose answer is missing notices that itself.
            let _ = tokio::time::timeout(PATIENCE, answer(stream)).await;
        }
    });
    Ok(address)
}

async fn answer(mut stream: TcpStream) -> std::io::Result<()> {
    let mut request = Vec::new();
    while !request.windows(4).any(|end| end == b"\r\n\r\n") && request.len() < LONGEST {
        if stream.read_buf(&mut request).await? == 0 {
            return Ok(());
        }
    }
    let length = ANSWER.len();
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{ANSWER}");
    stream.write_all(head.as_bytes()).await?;
    stream.shutdown().await
}

/// Calls the webhook like a kube-apiserver with an egress configuration: `CONNECT` on the tunnel's socket.
pub(super) async fn ask(socket: &Path, webhook: SocketAddr) -> Result<String> {
    let asked = tokio::time::timeout(PATIENCE, through(socket, webhook)).await;
    asked.context("nothing came back through the tunnel")?
}

async fn through(socket: &Path, webhook: SocketAddr) -> Result<String> {
    let mut stream = UnixStream::connect(socket).await.context("open the tunnel's socket")?;
    stream.write_all(format!("CONNECT {webhook} HTTP/1.1\r\nhost: {webhook}\r\n\r\n").as_bytes()).await?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        ensure!(head.len() < LONGEST, "the tunnel's answer has no end");
        head.push(stream.read_u8().await.context("read the tunnel's answer")?);
    }
    let head = String::from_utf8_lossy(&head);
    let first = head.lines().next().unwrap_or_default();
    ensure!(first.contains(" 200"), "the tunnel answered `{first}`");
    stream.write_all(b"POST /validate HTTP/1.1\r\nhost: webhook\r\ncontent-length: 0\r\n\r\n").await?;
    let mut whole = Vec::new();
    stream.take(LONGEST as u64).read_to_end(&mut whole).await.context("read the webhook's answer")?;
    let whole = String::from_utf8_lossy(&whole);
    let (_, body) = whole.split_once("\r\n\r\n").context("read the webhook's answer")?;
    Ok(body.to_owned())
}
