//! The admin port: metrics and health in clear, for the machine's own operators.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use landfall_wire::Listener;
use tokio::sync::Semaphore;

use crate::Gateway;
use crate::answer::{Answer, failure, text};
use crate::health::Question;

/// Scrapers and probes at once.
const MAX_CALLERS: usize = 32;
const IDLE_LIMIT: Duration = Duration::from_secs(90);

/// Serves for ever.
pub(crate) async fn serve(gateway: Arc<Gateway>, mut listener: Listener) {
    let callers = Arc::new(Semaphore::new(MAX_CALLERS));
    loop {
        let (stream, _) = listener.accept().await;
        let Ok(turn) = Arc::clone(&callers).try_acquire_owned() else { continue };
        let shared = Arc::clone(&gateway);
        tokio::spawn(async move {
            let _turn = turn;
            let service = service_fn(move |request| {
                let answer = answer(&shared, &request);
                async move { Ok::<_, Infallible>(answer) }
            });
            // A scraper that leaves early has what it wanted.
            let _ = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(IDLE_LIMIT)
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

fn answer<B>(gateway: &Gateway, request: &Request<B>) -> Answer {
    if let Some(question) = Question::of(request) {
        return question.answer(gateway);
    }
    match request.uri().path() {
        "/metrics" => text(StatusCode::OK, gateway.metrics.page(gateway.outlook.now().phase)),
        _ => failure(StatusCode::NOT_FOUND, "this port has `/metrics`, `/livez` and `/readyz`"),
    }
}
