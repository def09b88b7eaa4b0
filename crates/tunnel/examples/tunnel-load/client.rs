//! The frontend side of the tunnels, like kube-apiserver.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Instant;

use anyhow::{Result, anyhow, bail, ensure};
use bytes::{Buf as _, Bytes, BytesMut};
use landfall_http2::{Connection, Event, Limits, Role, StreamId};
use landfall_tunnel::grpc::{self, Messages};
use landfall_tunnel::packet::{ConnectId, Packet};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

/// Maximum payload of a packet from kube-apiserver.
const PIECE: usize = 32 * 1024;
const READ: usize = 128 * 1024;

/// Upstream identifies dials by this number alone, so it must be unique.
static NEXT_DIAL: AtomicI64 = AtomicI64::new(1);

/// Frontend and protocol of the tunnels.
#[derive(Clone)]
pub(crate) struct Way {
    grpc: bool,
    socket: PathBuf,
}

pub(crate) enum Client {
    Connect(UnixStream),
    Grpc(Box<GrpcClient>),
}

/// A tunnel on its own connection, like kube-apiserver's.
pub(crate) struct GrpcClient {
    socket: UnixStream,
    connection: Connection,
    input: BytesMut,
    stream: StreamId,
    messages: Messages,
    inbox: VecDeque<Packet>,
    connect_id: ConnectId,
    received: Bytes,
    ended: bool,
}

impl Way {
    pub(crate) fn new(mode: &str, socket: &str) -> Result<Self> {
        let grpc = match mode {
            "grpc" => true,
            "http-connect" => false,
            other => bail!("`{other}` is no mode"),
        };
        Ok(Self { grpc, socket: socket.into() })
    }
}

impl Client {
    pub(crate) async fn open(way: &Way, address: SocketAddr) -> Result<Self> {
        let mut socket = UnixStream::connect(&way.socket).await?;
        if way.grpc {
            return GrpcClient::dial(socket, address).await.map(|client| Self::Grpc(Box::new(client)));
        }
        socket.write_all(format!("CONNECT {address} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").as_bytes()).await?;
        // Upstream may send data with its response, or before it; another benchmark covers that.
        let mut answer = Vec::with_capacity(256);
        while !answer.windows(4).any(|window| window == b"\r\n\r\n") {
            ensure!(socket.read_buf(&mut answer).await? > 0, "hung up on");
        }
        ensure!(
            answer.windows(13).any(|window| window == b"HTTP/1.1 200 "),
            "refused: {}",
            String::from_utf8_lossy(&answer)
        );
        Ok(Self::Connect(socket))
    }

    /// Writes part of `bytes`; all of it for HTTP CONNECT.
    pub(crate) async fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        match self {
            Self::Connect(socket) => {
                socket.write_all(bytes).await?;
                Ok(bytes.len())
            }
            Self::Grpc(client) => client.write(bytes).await,
        }
    }

    pub(crate) async fn write_all(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let written = self.write(bytes).await?;
            bytes = &bytes[written..];
        }
        Ok(())
    }

    pub(crate) async fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let length = match self {
            Self::Connect(socket) => socket.read(buffer).await?,
            Self::Grpc(client) => client.read(buffer).await?,
        };
        ensure!(length > 0, "the tunnel ended");
        Ok(length)
    }

    pub(crate) async fn read_exact(&mut self, buffer: &mut [u8]) -> Result<()> {
        let mut filled = 0;
        while filled < buffer.len() {
            filled += self.read(&mut buffer[filled..]).await?;
        }
        Ok(())
    }

    pub(crate) async fn close(self) -> Result<()> {
        match self {
            Self::Connect(_) => Ok(()),
            Self::Grpc(mut client) => client.close().await,
        }
    }
}

impl GrpcClient {
    async fn dial(socket: UnixStream, address: SocketAddr) -> Result<Self> {
        let mut connection = Connection::new(Role::Client, Limits::default());
        let request = grpc::request("http", "localhost", "/ProxyService/Proxy");
        let stream = connection.open(&request).ok_or_else(|| anyhow!("no stream"))?;
        let mut client = Self {
            socket,
            connection,
            input: BytesMut::new(),
            stream,
            messages: Messages::default(),
            inbox: VecDeque::new(),
            connect_id: 0,
            received: Bytes::new(),
            ended: false,
        };
        client
            .send(Packet::DialRequest {
                protocol: "tcp".to_owned(),
                address: address.to_string(),
                random: NEXT_DIAL.fetch_add(1, Ordering::Relaxed),
            })
            .await?;
        match client.packet().await? {
            Packet::DialResponse { error, connect_id, .. } if error.is_empty() => {
                client.connect_id = connect_id;
                Ok(client)
            }
            other => bail!("{other:?} instead of a tunnel"),
        }
    }

    async fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        let piece = &bytes[..bytes.len().min(PIECE)];
        let connect_id = self.connect_id;
        self.send(Packet::Data { connect_id, data: Bytes::copy_from_slice(piece) }).await?;
        Ok(piece.len())
    }

    async fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        while self.received.is_empty() {
            match self.packet().await? {
                Packet::Data { data, .. } => self.received = data,
                Packet::CloseResponse { .. } => return Ok(0),
                _ => {}
            }
        }
        let length = buffer.len().min(self.received.len());
        self.received.copy_to_slice(&mut buffer[..length]);
        Ok(length)
    }

    async fn close(&mut self) -> Result<()> {
        self.send(Packet::CloseRequest { connect_id: self.connect_id }).await?;
        while !matches!(self.packet().await?, Packet::CloseResponse { .. }) {}
        Ok(())
    }

    async fn send(&mut self, packet: Packet) -> Result<()> {
        self.connection.send(self.stream, packet.encode());
        self.flush().await?;
        while !self.connection.is_drained(self.stream) {
            self.fill().await?;
            self.flush().await?;
        }
        Ok(())
    }

    async fn packet(&mut self) -> Result<Packet> {
        loop {
            if let Some(packet) = self.inbox.pop_front() {
                return Ok(packet);
            }
            ensure!(!self.ended, "the stream ended");
            self.flush().await?;
            self.fill().await?;
        }
    }

    async fn flush(&mut self) -> Result<()> {
        loop {
            self.connection.flush();
            let output = self.connection.output();
            if output.is_empty() {
                return Ok(());
            }
            let mut slices = [std::io::IoSlice::new(&[]); 16];
            let count = output.slices(&mut slices);
            let written = self.socket.write_vectored(&slices[..count]).await?;
            self.connection.output().advance(written);
        }
    }

    async fn fill(&mut self) -> Result<()> {
        // A client allocates its buffer when data is available, so that idle clients use no memory for it.
        self.socket.readable().await?;
        self.input.reserve(READ);
        match self.socket.try_read_buf(&mut self.input) {
            Ok(0) => bail!("hung up on"),
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        while let Some(event) = self.connection.receive(&mut self.input, Instant::now())? {
            match event {
                Event::Data { bytes, end, .. } => {
                    self.connection.release(self.stream, bytes.len());
                    self.messages.push(bytes);
                    while let Some(message) = self.messages.next()? {
                        self.inbox.push_back(Packet::decode(message)?);
                    }
                    self.ended |= end;
                }
                Event::Headers { headers, end, .. } => {
                    if let Some(failure) = grpc::failure(&headers) {
                        bail!("{failure}");
                    }
                    self.ended |= end;
                }
                Event::Reset { code, .. } | Event::GoAway { code, .. } => bail!("{code}"),
            }
        }
        if self.input.is_empty() {
            self.input = BytesMut::new();
        }
        Ok(())
    }
}
