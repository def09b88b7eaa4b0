//! Cost of framing: the same DATA through landfall's HTTP/2 layer and through `h2`, over the same in-memory pipe, on
//! one thread.
//!
//! Run it as `framing ours|h2 MEBIBYTES SIZE` under `perf stat -e instructions:u`; see docs/decisions/http2.md.
#![expect(clippy::print_stdout, reason = "a tool for measurements")]

use std::future::poll_fn;
use std::io::IoSlice;
use std::time::Instant;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use bytes::{Bytes, BytesMut};
use landfall_http2::{Connection, Event, Limits, Role};
use landfall_tunnel::grpc;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

/// Window of both implementations, so that the pipe alone limits how far the ends can diverge.
const WINDOW: u32 = 16 * 1024 * 1024;
const PIPE: usize = 256 * 1024;
const FRAME: u32 = 128 * 1024;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [whose, mebibytes, size] = &arguments[..] else { bail!("hint: `framing ours|h2 MEBIBYTES SIZE`") };
    let (total, size) = (mebibytes.parse::<usize>()? << 20, size.parse::<usize>()?);
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let (near, far) = tokio::io::duplex(PIPE);
    let payload = Bytes::from(vec![7; size]);
    let started = Instant::now();
    let received = runtime.block_on(async {
        match whose.as_str() {
            "ours" => {
                let sending = tokio::spawn(send(near, payload, total / size));
                let received = receive(far, total / size * size).await?;
                sending.await??;
                anyhow::Ok(received)
            }
            "h2" => {
                let sending = tokio::spawn(h2_send(near, payload, total / size));
                let received = h2_receive(far).await?;
                sending.await??;
                Ok(received)
            }
            other => Err(anyhow!("`{other}` is not known")),
        }
    })?;
    ensure!(received == total / size * size, "{received} bytes arrived");
    println!("{whose}: {mebibytes} MiB in pieces of {size} in {:.3} s", started.elapsed().as_secs_f64());
    Ok(())
}

fn limits() -> Limits {
    Limits { stream_window: WINDOW, connection_window: WINDOW, ..Limits::default() }
}

async fn send(mut pipe: DuplexStream, payload: Bytes, count: usize) -> Result<()> {
    let mut connection = Connection::new(Role::Client, limits());
    let request = grpc::request("http", "localhost", "/ProxyService/Proxy");
    let stream = connection.open(&request).context("a stream")?;
    let (mut input, mut left) = (BytesMut::new(), count);
    loop {
        while left > 0 && connection.is_writable(stream) {
            connection.send(stream, [payload.clone()]);
            connection.flush();
            left -= 1;
        }
        if left == 0 && connection.is_drained(stream) {
            connection.finish(stream, None);
        }
        connection.flush();
        if connection.output().is_empty() {
            if left == 0 && connection.is_drained(stream) {
                return Ok(());
            }
            ensure!(pipe.read_buf(&mut input).await? > 0, "hung up on");
            while connection.receive(&mut input, Instant::now())?.is_some() {}
            continue;
        }
        let mut slices = [IoSlice::new(&[]); 16];
        let filled = connection.output().slices(&mut slices);
        let written = pipe.write_vectored(&slices[..filled]).await?;
        connection.output().advance(written);
    }
}

async fn receive(mut pipe: DuplexStream, expected: usize) -> Result<usize> {
    let mut connection = Connection::new(Role::Server, limits());
    let (mut input, mut received) = (BytesMut::new(), 0);
    while received < expected {
        input.reserve(PIPE);
        ensure!(pipe.read_buf(&mut input).await? > 0, "hung up on");
        while let Some(event) = connection.receive(&mut input, Instant::now())? {
            match event {
                Event::Headers { stream, .. } => connection.respond(stream, &grpc::response(), false),
                Event::Data { stream, bytes, .. } => {
                    received += bytes.len();
                    connection.release(stream, bytes.len());
                }
                Event::Reset { code, .. } | Event::GoAway { code, .. } => bail!("{code}"),
            }
        }
        connection.flush();
        while !connection.output().is_empty() {
            let mut slices = [IoSlice::new(&[]); 16];
            let filled = connection.output().slices(&mut slices);
            let written = pipe.write_vectored(&slices[..filled]).await?;
            connection.output().advance(written);
        }
    }
    Ok(received)
}

async fn h2_send(pipe: DuplexStream, payload: Bytes, count: usize) -> Result<()> {
    let (sender, connection) = h2::client::Builder::new()
        .initial_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_frame_size(FRAME)
        .max_send_buffer_size(PIPE)
        .handshake::<_, Bytes>(pipe)
        .await?;
    let driven = tokio::spawn(connection);
    let mut sender = sender.ready().await?;
    let request = http::Request::post("http://localhost/ProxyService/Proxy").body(())?;
    let (response, mut stream) = sender.send_request(request, false)?;
    ensure!(response.await?.status().is_success(), "refused");
    for _ in 0..count {
        let mut piece = payload.clone();
        while !piece.is_empty() {
            stream.reserve_capacity(piece.len());
            let room = poll_fn(|cx| stream.poll_capacity(cx)).await.context("the stream is gone")??;
            stream.send_data(piece.split_to(room.min(piece.len())), false)?;
        }
    }
    stream.send_data(Bytes::new(), true)?;
    drop((sender, stream));
    // Fails once the other end is closed, which happens after the last byte.
    let _ = driven.await?;
    Ok(())
}

async fn h2_receive(pipe: DuplexStream) -> Result<usize> {
    let mut connection = h2::server::Builder::new()
        .initial_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_frame_size(FRAME)
        .handshake::<_, Bytes>(pipe)
        .await?;
    let (request, mut respond) = connection.accept().await.context("a stream")??;
    let _answer = respond.send_response(http::Response::new(()), false)?;
    let driven = tokio::spawn(async move { while connection.accept().await.is_some() {} });
    let (mut body, mut received) = (request.into_body(), 0);
    while let Some(bytes) = body.data().await {
        let bytes = bytes?;
        received += bytes.len();
        body.flow_control().release_capacity(bytes.len())?;
    }
    driven.abort();
    Ok(received)
}
