//! One connection, from its first byte to its end.
//!
//! What the HTTP library keeps for a connection (two buffers of 8 KB and its own state) is given back while nothing is being
//! asked: ten thousand nodes that report every few seconds over connections they keep are idle nearly always. Between two
//! reports there is only the socket and a few bytes for what comes next.

use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response, Version, header};
use bytes::{Buf as _, Bytes};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::sync::watch;
use tokio::time::Sleep;
use tower_service::Service as _;

use crate::http::{Connection, Rests};
use crate::lingering::Lingering;
use crate::server::Asked;

/// How long a connection may say nothing, how long a client may take for the head of a request, and how long it may take
/// nothing of an answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// What is read from a connection at once; heads are bounded by it too.
const READ_BUFFER: usize = 16 << 10;
/// What of a request is read before the HTTP library is called for it.
const FIRST: usize = 64;
/// How every HTTP/2 connection begins, and no request of HTTP/1 does.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Streams of one HTTP/2 connection, and the bytes of their heads.
const MAX_STREAMS: u32 = 100;
const MAX_HEADERS: u32 = 16 << 10;
/// What of all bodies a client may send over HTTP/2 before we read it; it lies in our memory meanwhile. A report fits.
const WINDOW: u32 = 128 << 10;

/// Told when the hub ends: what was begun is finished, and nothing new is begun.
pub(crate) type Ended = watch::Receiver<()>;

/// A stream and what was read from it already.
struct Rewound<S> {
    begun: Bytes,
    stream: S,
    mood: Arc<Mood>,
}

/// Who asks, and who answers.
struct Asking {
    connection: Connection,
    router: Router,
    asked: Asked,
}

/// What is seen of a conversation from outside of the HTTP library.
#[derive(Debug, Default)]
struct Mood {
    /// A request is being answered.
    busy: AtomicBool,
    /// The last answer says that the connection may rest.
    rests: AtomicBool,
    /// The client does not take what is sent to it.
    stuck: AtomicBool,
    /// Counts the bytes it took.
    taken: AtomicU64,
    /// Requests of HTTP/2 that are not done with, and those of them whose answers are being sent.
    streams: AtomicUsize,
    sending: AtomicUsize,
    /// Grows with each of them and with each piece of an answer.
    moves: AtomicU64,
}

/// One more of something, while it is there.
struct Counted(Arc<Mood>, fn(&Mood) -> &AtomicUsize);

/// What comes after a conversation.
enum After {
    /// The next, once something is asked.
    Rest,
    End,
    /// The client took nothing for too long.
    GivenUp,
}

/// A client that takes nothing, and for how long that is borne.
struct Stuck {
    taken: u64,
    until: Pin<Box<Sleep>>,
}

type Answering = Pin<Box<dyn Future<Output = Result<Response<Body>, std::convert::Infallible>> + Send>>;

/// Serves a connection until its end.
pub(crate) async fn converse<S>(
    mut stream: S,
    connection: Connection,
    router: Router,
    mut ended: Ended,
    asked: Asked,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut begun = Bytes::new();
    loop {
        if begun.is_empty() {
            let first = tokio::select! {
                first = tokio::time::timeout(PATIENCE, first_bytes(&mut stream)) => first,
                _ = ended.changed() => return,
            };
            match first {
                Ok(Ok(first)) if !first.is_empty() => begun = first,
                // It ended, broke, or said nothing for too long.
                _ => return,
            }
        }
        let ended = ended.clone();
        let asking = Asking { connection: connection.clone(), router: router.clone(), asked: asked.clone() };
        // In a box: what waits between two requests must be small.
        if begun.starts_with(PREFACE) {
            return Box::pin(streams(begun, stream, asking, ended)).await;
        }
        let rested = Box::pin(requests(begun, stream, asking, ended)).await;
        let Some(rest) = rested else { return };
        (begun, stream) = rest;
    }
}

/// The first bytes of what comes next: as many as tell HTTP/2 from HTTP/1. None at the end of the connection.
async fn first_bytes(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Bytes> {
    let mut first = [0; FIRST];
    let mut length = 0;
    loop {
        let read = stream.read(&mut first[length..]).await?;
        length += read;
        let undecided = length < PREFACE.len() && PREFACE.starts_with(&first[..length]);
        if read == 0 || !undecided {
            return Ok(Bytes::copy_from_slice(&first[..length]));
        }
    }
}

/// HTTP/2, until the end of the connection.
async fn streams<S>(begun: Bytes, stream: S, asking: Asking, mut ended: Ended)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mood = Arc::new(Mood::default());
    let seen = Arc::clone(&mood);
    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
        let stream = Counted::one(&seen, |mood| &mood.streams);
        let answering = asking.answer(request.map(Lingering::new));
        async move { answering.await.map(|answer| answer.map(|body| stream.until_sent(body))) }
    });
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .keep_alive_interval(PATIENCE)
        .max_concurrent_streams(MAX_STREAMS)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_header_list_size(MAX_HEADERS);
    let io = TokioIo::new(Rewound { begun, stream, mood: Arc::clone(&mood) });
    let mut serving = pin!(builder.serve_connection(io, service));
    let done = tokio::select! {
        done = serving.as_mut() => done,
        _ = ended.changed() => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
        () = mood.rested() => {
            // The client is told, and has as long again to say goodbye.
            serving.as_mut().graceful_shutdown();
            tokio::time::timeout(PATIENCE, serving).await.unwrap_or(Ok(()))
        }
    };
    tell(done);
}

/// HTTP/1, until the connection ends, or rests: then the stream comes back with what was read of the next request.
async fn requests<S>(begun: Bytes, stream: S, asking: Asking, mut ended: Ended) -> Option<(Bytes, S)>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mood = Arc::new(Mood::default());
    let seen = Arc::clone(&mood);
    let service = hyper::service::service_fn(move |request: Request<Incoming>| -> Answering {
        let mood = Arc::clone(&seen);
        mood.busy.store(true, Ordering::Relaxed);
        let may_rest =
            request.version() == Version::HTTP_11 && !request.headers().contains_key(header::CONNECTION);
        let answering = asking.answer(request);
        Box::pin(async move {
            let answered = answering.await;
            let rests = answered.as_ref().is_ok_and(|answer| answer.extensions().get::<Rests>().is_some());
            mood.rests.store(may_rest && rests, Ordering::Relaxed);
            mood.busy.store(false, Ordering::Relaxed);
            answered
        })
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(PATIENCE).max_buf_size(READ_BUFFER);
    let io = TokioIo::new(Rewound { begun, stream, mood: Arc::clone(&mood) });
    let mut serving = builder.serve_connection(io, service);
    let mut ending = pin!(ended.changed());
    let mut told = false;
    let mut stuck: Option<Stuck> = None;
    let done = std::future::poll_fn(|context| {
        if !told && ending.as_mut().poll(context).is_ready() {
            told = true;
            Pin::new(&mut serving).graceful_shutdown();
        }
        if let Poll::Ready(done) = serving.poll_without_shutdown(context) {
            return Poll::Ready(done.map(|()| After::End));
        }
        if Stuck::look(&mut stuck, &mood, context) {
            return Poll::Ready(Ok(After::GivenUp));
        }
        if !told && mood.may_rest() {
            // Between two requests this ends it at once and says nothing to the client; only then is it taken up again. In
            // any other state it is a connection that ends after this answer.
            told = true;
            Pin::new(&mut serving).graceful_shutdown();
            return serving.poll_without_shutdown(context).map_ok(|()| After::Rest);
        }
        Poll::Pending
    });
    match done.await {
        Ok(After::Rest) => {
            let parts = serving.into_parts();
            let Rewound { begun, stream, .. } = parts.io.into_inner();
            let next =
                if begun.is_empty() { parts.read_buf } else { [parts.read_buf, begun].concat().into() };
            Some((next, stream))
        }
        Ok(After::GivenUp) => None,
        Ok(After::End) => {
            // It is closed anyway.
            let mut stream = serving.into_parts().io.into_inner().stream;
            let _ = tokio::time::timeout(PATIENCE, stream.shutdown()).await;
            None
        }
        Err(error) => {
            tell(Err(error));
            None
        }
    }
}

fn tell(done: hyper::Result<()>) {
    if let Err(error) = done {
        tracing::debug!(error = %error, "A connection ended badly.");
    }
}

// === impl Asking ===

impl Asking {
    fn answer<B>(
        &self,
        mut request: Request<B>,
    ) -> impl Future<Output = Result<Response<Body>, std::convert::Infallible>> + Send + use<B>
    where
        B: hyper::body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<axum::BoxError>,
    {
        self.asked.set();
        request.extensions_mut().insert(self.connection.clone());
        self.router.clone().call(request)
    }
}

// === impl Mood ===

impl Mood {
    fn may_rest(&self) -> bool {
        self.rests.load(Ordering::Relaxed)
            && !self.busy.load(Ordering::Relaxed)
            && !self.stuck.load(Ordering::Relaxed)
    }

    /// Comes when nothing was asked for a while and no answer is being worked on; those that are ready are not taken then.
    /// Pings are no reason to stay.
    async fn rested(&self) {
        let mut moves = None;
        loop {
            let now = self.moves.load(Ordering::Relaxed);
            // Requests that are being worked on have deadlines of their own.
            let working = self.streams.load(Ordering::Relaxed) > self.sending.load(Ordering::Relaxed);
            if moves == Some(now) && !working {
                return;
            }
            moves = Some(now);
            tokio::time::sleep(PATIENCE).await;
        }
    }

    fn count_taken(&self, written: &Poll<io::Result<usize>>) {
        self.stuck.store(written.is_pending(), Ordering::Relaxed);
        if let Poll::Ready(Ok(count)) = written {
            self.taken.fetch_add(*count as u64, Ordering::Relaxed);
        }
    }
}

// === impl Stuck ===

impl Stuck {
    /// Whether the client has taken nothing for too long.
    fn look(stuck: &mut Option<Self>, mood: &Mood, context: &mut Context<'_>) -> bool {
        if !mood.stuck.load(Ordering::Relaxed) {
            *stuck = None;
            return false;
        }
        let taken = mood.taken.load(Ordering::Relaxed);
        let same = stuck.take().filter(|stuck| stuck.taken == taken);
        let since = || Self { taken, until: Box::pin(tokio::time::sleep(PATIENCE)) };
        stuck.insert(same.unwrap_or_else(since)).until.as_mut().poll(context).is_ready()
    }
}

// === impl Counted ===

impl Counted {
    fn one(mood: &Arc<Mood>, of: fn(&Mood) -> &AtomicUsize) -> Self {
        of(mood).fetch_add(1, Ordering::Relaxed);
        mood.moves.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(mood), of)
    }

    /// A body that is counted as being sent from now on, until its end.
    fn until_sent(self, body: Body) -> Body {
        let sending = Self::one(&self.0, |mood| &mood.sending);
        Body::new(body.map_frame(move |frame| {
            // What the library asks for it can send: so the client takes something.
            sending.0.moves.fetch_add(1, Ordering::Relaxed);
            let _ = &self;
            frame
        }))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        (self.1)(&self.0).fetch_sub(1, Ordering::Relaxed);
    }
}

// === impl Rewound ===

impl<S: AsyncRead + Unpin> AsyncRead for Rewound<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.begun.is_empty() {
            return Pin::new(&mut self.stream).poll_read(context, buffer);
        }
        let length = self.begun.len().min(buffer.remaining());
        buffer.put_slice(&self.begun[..length]);
        self.begun.advance(length);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Rewound<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.mood.count_taken(&written);
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, pieces);
        self.mood.count_taken(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.mood.stuck.store(flushed.is_pending(), Ordering::Relaxed);
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use http_body_util::Empty;
    use hyper::client::conn::http2::SendRequest;
    use tokio::io::DuplexStream;
    use tokio::task::JoinHandle;
    use tokio::time::Instant;

    use super::*;

    const PAGE: usize = 4 << 20;

    /// A client's end of a connection that is served, and the task that serves it.
    fn connect(ended: &watch::Sender<()>) -> (DuplexStream, JoinHandle<()>) {
        let (client, server) = tokio::io::duplex(4096);
        let long = get(async || {
            tokio::time::sleep(PATIENCE * 5).await;
            "done"
        });
        let held = get(async |body: Body| {
            tokio::time::sleep(PATIENCE * 5).await;
            drop(body);
        });
        let router = Router::new().route("/page", get(async || vec![b'x'; PAGE]));
        let router = router.route("/long", long).route("/held", held);
        let connection = Connection { peer: [127, 0, 0, 1].into(), certificate: None };
        (client, tokio::spawn(converse(server, connection, router, ended.subscribe(), Asked::default())))
    }

    async fn ends_within(serving: JoinHandle<()>, limit: Duration) {
        tokio::time::timeout(limit, serving).await.expect("it goes on").unwrap();
    }

    async fn client_2(stream: DuplexStream) -> SendRequest<Empty<Bytes>> {
        let shaken = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
        let (sender, connection) = shaken.unwrap();
        // Answers pings, for as long as it is asked.
        tokio::spawn(connection);
        sender
    }

    fn ask(path: &str) -> Request<Empty<Bytes>> {
        Request::get(format!("http://localhost{path}")).body(Empty::new()).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn who_takes_nothing_of_an_answer_loses_his_place() {
        let ended = watch::Sender::new(());
        let (mut client, serving) = connect(&ended);
        client.write_all(b"GET /page HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        let begun = Instant::now();
        ends_within(serving, PATIENCE * 2).await;
        assert!(begun.elapsed() >= PATIENCE);
    }

    #[tokio::test(start_paused = true)]
    async fn who_takes_an_answer_slowly_gets_it() {
        let ended = watch::Sender::new(());
        let (mut client, serving) = connect(&ended);
        client
            .write_all(b"GET /page HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            .await
            .unwrap();
        let mut piece = vec![0; 64 << 10];
        let mut taken = 0;
        loop {
            tokio::time::sleep(PATIENCE * 2 / 3).await;
            let read = client.read(&mut piece).await.unwrap();
            if read == 0 {
                break;
            }
            taken += read;
        }
        assert!(taken > PAGE, "{taken}");
        ends_within(serving, PATIENCE).await;
    }

    #[tokio::test(start_paused = true)]
    async fn over_http_2_nobody_stays_by_answering_pings() {
        let ended = watch::Sender::new(());
        let (client, serving) = connect(&ended);
        let mut sender = client_2(client).await;
        assert_eq!(sender.send_request(ask("/nowhere")).await.unwrap().status(), 404);
        ends_within(serving, PATIENCE * 3).await;
    }

    /// What waits for its turn lies with its sender.
    #[tokio::test(start_paused = true)]
    async fn over_http_2_little_is_sent_that_nobody_reads() {
        let ended = watch::Sender::new(());
        let (client, serving) = connect(&ended);
        let shaken = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(client)).await;
        let (mut sender, connection) = shaken.unwrap();
        tokio::spawn(connection);
        let taken = Arc::new(AtomicUsize::new(0));
        let pieces = futures_util::stream::repeat_with({
            let taken = Arc::clone(&taken);
            move || {
                taken.fetch_add(1024, Ordering::Relaxed);
                Ok::<_, std::convert::Infallible>(hyper::body::Frame::data(Bytes::from_static(&[b'x'; 1024])))
            }
        });
        let request = Request::get("http://localhost/held").body(http_body_util::StreamBody::new(pieces));
        let answer = tokio::time::timeout(PATIENCE, sender.send_request(request.unwrap())).await;
        assert!(answer.is_err(), "it takes longer than that");
        let taken = taken.load(Ordering::Relaxed);
        assert!((100_000..300_000).contains(&taken), "{taken}");
        drop((answer, sender));
        ends_within(serving, PATIENCE * 10).await;
    }

    #[tokio::test(start_paused = true)]
    async fn over_http_2_who_takes_nothing_of_an_answer_loses_his_place() {
        let ended = watch::Sender::new(());
        let (client, serving) = connect(&ended);
        let mut sender = client_2(client).await;
        let answer = sender.send_request(ask("/page")).await.unwrap();
        ends_within(serving, PATIENCE * 4).await;
        drop(answer);
    }

    #[tokio::test(start_paused = true)]
    async fn over_http_2_what_takes_long_is_waited_for() {
        let ended = watch::Sender::new(());
        let (client, serving) = connect(&ended);
        let mut sender = client_2(client).await;
        let answer = sender.send_request(ask("/long")).await.unwrap();
        assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "done");
        ends_within(serving, PATIENCE * 3).await;
    }
}
