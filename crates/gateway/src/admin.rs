//! The admin port: metrics and health without TLS, for the operators of this host.

use std::future::{Future, pending, ready};
use std::pin::Pin;
use std::sync::Arc;

use http_body_util::BodyExt;
use hyper::{Request, Response, StatusCode};
use landfall_net::Listener;
use landfall_net::serve::{Accept, Handler, Limits, Peer, RequestBody, ResponseBody, Session};

use crate::Gateway;
use crate::answer::{Answer, failure, text};
use crate::health::Question;

struct Admin(Arc<Gateway>);

/// Serves until the process ends.
pub(crate) async fn serve(gateway: Arc<Gateway>, listener: Listener) {
    landfall_net::serve::serve(Accept::Tcp(listener), Limits::SMALL, Arc::new(Admin(gateway)), pending())
        .await;
}

impl Handler for Admin {
    type State = ();

    fn open(&self, _: Peer) -> Option<Session<()>> {
        Some(Session::new(()))
    }

    fn handle<'h>(
        &'h self,
        _: &'h Arc<()>,
        request: Request<RequestBody>,
    ) -> Pin<Box<dyn Future<Output = Response<ResponseBody>> + Send + 'h>> {
        Box::pin(ready(answer(&self.0, &request).map(BodyExt::boxed_unsync)))
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
