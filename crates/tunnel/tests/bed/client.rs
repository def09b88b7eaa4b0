//! A client like kube-apiserver, over blocking sockets.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use bytes::{Buf as _, Bytes, BytesMut};
use landfall_http2::{Connection, Event, Headers, Limits, Role, StreamId};
use landfall_tunnel::grpc::{self, Messages};
use landfall_tunnel::packet::{ConnectId, Packet};

const LIMIT: Duration = Duration::from_secs(30);
const WRITE_LIMIT: Duration = Duration::from_secs(5);

/// The frontend end of a tunnel.
pub enum Client {
    Connect(UnixStream),
    Grpc(Box<GrpcClient>),
}

pub trait Socket: Read + Write + Send {}
impl<S: Read + Write + Send> Socket for S {}

/// One gRPC stream on its own connection.
pub struct GrpcClient {
    socket: Box<dyn Socket>,
    connection: Connection,
    input: BytesMut,
    stream: StreamId,
    messages: Messages,
    inbox: VecDeque<Packet>,
    connect_id: ConnectId,
    received: Bytes,
    closed: bool,
}

/// Dials like kube-apiserver: bytes in the same read as the response are an error.
pub fn connect(socket: &Path, address: &str) -> Result<UnixStream, String> {
    let (stream, answer) = connect_and_read(socket, address)?;
    if !answer.ends_with("\r\n\r\n") {
        return Err(format!("unexpected bytes of buffered data: {} bytes", answer.len()));
    }
    Ok(stream)
}

/// Dials and discards bytes that arrive with the response.
pub fn connect_loosely(socket: &Path, address: &str) -> Result<UnixStream, String> {
    connect_and_read(socket, address).map(|(stream, _)| stream)
}

fn connect_and_read(socket: &Path, address: &str) -> Result<(UnixStream, String), String> {
    let text = |error: io::Error| error.to_string();
    let mut stream = UnixStream::connect(socket).map_err(text)?;
    stream.set_read_timeout(Some(LIMIT)).map_err(text)?;
    stream.set_write_timeout(Some(WRITE_LIMIT)).map_err(text)?;
    write!(stream, "CONNECT {address} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").map_err(text)?;
    let mut answer = Vec::new();
    while !answer.windows(4).any(|window| window == b"\r\n\r\n") {
        let mut buffer = [0; 4096];
        let length = stream.read(&mut buffer).map_err(text)?;
        if length == 0 {
            return Err(format!("end of stream after {:?}", String::from_utf8_lossy(&answer)));
        }
        answer.extend_from_slice(&buffer[..length]);
    }
    let answer = String::from_utf8_lossy(&answer).into_owned();
    if !answer.contains("HTTP/1.1 200 ") {
        let mut rest = String::new();
        let _ = stream.read_to_string(&mut rest);
        return Err(answer + &rest);
    }
    Ok((stream, answer))
}

impl Client {
    /// Closes the tunnel by the rules of its protocol.
    pub fn close(self) {
        match self {
            Self::Connect(stream) => drop(stream),
            Self::Grpc(mut client) => client.close(),
        }
    }
}

impl Read for Client {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Connect(stream) => stream.read(buffer),
            Self::Grpc(client) => client.read(buffer),
        }
    }
}

impl Write for Client {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Connect(stream) => stream.write(bytes),
            Self::Grpc(client) => client.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl GrpcClient {
    /// Dials like kube-apiserver over a Unix socket: one connection for each tunnel.
    pub fn dial(socket: &Path, address: &str) -> Result<Self, String> {
        let mut client = Self::open(socket).map_err(|error| error.to_string())?;
        client.ask(address, 77).map_err(|error| error.to_string())?;
        match client.packet().map_err(|error| error.to_string())? {
            Packet::DialResponse { error, connect_id, random: 77 } if error.is_empty() => {
                client.connect_id = connect_id;
                Ok(client)
            }
            Packet::DialResponse { error, .. } => Err(error),
            other => Err(format!("{other:?} instead of an answer")),
        }
    }

    /// Opens a connection with one stream and no dial yet.
    pub fn open(socket: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.set_write_timeout(Some(WRITE_LIMIT))?;
        let authority = socket.display().to_string().replace('/', "%2F");
        Self::call(Box::new(stream), &grpc::request("http", &authority, "/ProxyService/Proxy"))
    }

    /// Connects as an agent without credit support, controlled by the test.
    pub fn agent(port: u16, id: &str) -> io::Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(LIMIT))?;
        let request = grpc::request("http", "127.0.0.1", "/AgentService/Connect").with("agentid", id);
        let mut agent = Self::call(Box::new(stream), &request)?;
        agent.write_out()?;
        Ok(agent)
    }

    fn call(socket: Box<dyn Socket>, request: &Headers) -> io::Result<Self> {
        let mut connection = Connection::new(Role::Client, Limits::default());
        let id = connection.open(request).ok_or(io::ErrorKind::Other)?;
        Ok(Self {
            socket,
            connection,
            input: BytesMut::new(),
            stream: id,
            messages: Messages::default(),
            inbox: VecDeque::new(),
            connect_id: 0,
            received: Bytes::new(),
            closed: false,
        })
    }

    pub fn connect_id(&self) -> ConnectId {
        self.connect_id
    }

    pub fn ask(&mut self, address: &str, random: i64) -> io::Result<()> {
        let dial = Packet::DialRequest { protocol: "tcp".to_owned(), address: address.to_owned(), random };
        self.send(dial)
    }

    pub fn send(&mut self, packet: Packet) -> io::Result<()> {
        self.connection.send(self.stream, packet.encode());
        self.write_out()?;
        while !self.connection.is_drained(self.stream) {
            self.fill()?;
            self.write_out()?;
        }
        Ok(())
    }

    /// Waits for the next packet.
    pub fn packet(&mut self) -> io::Result<Packet> {
        loop {
            if let Some(packet) = self.inbox.pop_front() {
                return Ok(packet);
            }
            if self.closed {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.write_out()?;
            self.fill()?;
        }
    }

    fn take_events(&mut self) -> io::Result<()> {
        while let Some(event) =
            self.connection.receive(&mut self.input, Instant::now()).map_err(io::Error::other)?
        {
            match event {
                Event::Data { bytes, end, .. } => {
                    self.connection.release(self.stream, bytes.len());
                    self.messages.push(bytes);
                    while let Some(message) = self.messages.next().map_err(io::Error::other)? {
                        self.inbox.push_back(Packet::decode(message).map_err(io::Error::other)?);
                    }
                    self.closed |= end;
                }
                Event::Headers { headers, end, .. } => {
                    if let Some(failure) = grpc::failure(&headers) {
                        return Err(io::Error::other(failure));
                    }
                    self.closed |= end;
                }
                Event::Reset { code, .. } | Event::GoAway { code, .. } => {
                    return Err(io::Error::other(code.to_string()));
                }
            }
        }
        Ok(())
    }

    fn close(&mut self) {
        let close = Packet::CloseRequest { connect_id: self.connect_id };
        if self.send(close).is_ok() {
            while let Ok(packet) = self.packet() {
                if matches!(packet, Packet::CloseResponse { .. }) {
                    break;
                }
            }
        }
    }

    fn write_out(&mut self) -> io::Result<()> {
        loop {
            self.connection.flush();
            let output = self.connection.output();
            if output.is_empty() {
                return Ok(());
            }
            let mut slices = [io::IoSlice::new(&[]); 16];
            let count = output.slices(&mut slices);
            let written = self.socket.write_vectored(&slices[..count])?;
            self.connection.output().advance(written);
        }
    }

    fn fill(&mut self) -> io::Result<()> {
        let mut buffer = [0; 16 * 1024];
        let length = self.socket.read(&mut buffer)?;
        if length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.input.extend_from_slice(&buffer[..length]);
        self.take_events()
    }
}

impl Read for GrpcClient {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.received.is_empty() {
            match self.packet()? {
                Packet::Data { data, .. } => self.received = data,
                Packet::CloseResponse { .. } => return Ok(0),
                _ => {}
            }
        }
        let length = buffer.len().min(self.received.len());
        self.received.copy_to_slice(&mut buffer[..length]);
        Ok(length)
    }
}

impl Write for GrpcClient {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let piece = &bytes[..bytes.len().min(32 * 1024)];
        let data = Bytes::copy_from_slice(piece);
        self.send(Packet::Data { connect_id: self.connect_id, data })?;
        Ok(piece.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
