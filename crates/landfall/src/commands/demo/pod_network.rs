//! The simulated pod network: a webhook, and the connection to it through the tunnel.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use landfall_net::http::{self, Connection, Limits, Request};
use landfall_net::{ConnectProxy, ProxyPlace};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

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
    let proxy = ConnectProxy { place: ProxyPlace::Unix(socket.to_owned()), authorization: None };
    let stream = proxy.open(&webhook.to_string(), None, PATIENCE).await?;
    let mut connection = Connection::over(stream, "webhook".to_owned()).await?;
    let request = Request::post("/validate").header("content-length", 0).body(http::empty())?;
    let answer = connection.exchange(request, Limits { within: PATIENCE, answer: LONGEST }).await?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}
