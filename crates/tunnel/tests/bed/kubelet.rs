//! The parts of a kubelet that long streams need: `/stream` sends, and upgrade requests are echoed.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

use anyhow::Result;
use landfall_pki::{Authority, Leaf, Purpose};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

const CHUNK: usize = 64 * 1024;

type Tls = StreamOwned<ServerConnection, TcpStream>;

/// Serves on `address` until the test ends. `chunks` is the number of 64 KiB chunks that `/stream` sends.
pub fn start(address: IpAddr, authority: &Authority, chunks: usize) -> Result<SocketAddr> {
    let pair = authority.issue(&Leaf::new("kubelet", Purpose::Serve).names([address.to_string()]))?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(
            CertificateDer::pem_slice_iter(pair.certificate.as_bytes()).collect::<Result<_, _>>()?,
            PrivateKeyDer::from_pem_slice(pair.key.expose().as_bytes())?,
        )?;
    let (config, listener) = (Arc::new(config), TcpListener::bind((address, 0))?);
    let address = listener.local_addr()?;
    std::thread::spawn(move || {
        for socket in listener.incoming().flatten() {
            let config = Arc::clone(&config);
            std::thread::spawn(move || {
                let Ok(connection) = ServerConnection::new(config) else { return };
                // A client that disconnects only ends its own connection.
                let _ = serve(StreamOwned::new(connection, socket), chunks);
            });
        }
    });
    Ok(address)
}

fn serve(stream: Tls, chunks: usize) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head)? == 0 {
            return Ok(());
        }
    }
    if head.to_ascii_lowercase().contains("\r\nupgrade:") {
        let early = reader.buffer().to_vec();
        return echo(reader.into_inner(), &early);
    }
    let mut stream = reader.into_inner();
    stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n")?;
    let mut chunk = format!("{CHUNK:x}\r\n").into_bytes();
    chunk.extend((0..CHUNK).map(|at| b'a' + u8::try_from(at % 26).unwrap_or(0)));
    chunk.extend(b"\r\n");
    for _ in 0..chunks {
        stream.write_all(&chunk)?;
    }
    stream.write_all(b"0\r\n\r\n")?;
    stream.conn.send_close_notify();
    stream.flush()
}

fn echo(mut stream: Tls, early: &[u8]) -> std::io::Result<()> {
    stream
        .write_all(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n")?;
    stream.write_all(early)?;
    let mut buffer = vec![0; CHUNK];
    loop {
        let length = stream.read(&mut buffer)?;
        if length == 0 {
            return Ok(());
        }
        stream.write_all(&buffer[..length])?;
    }
}
