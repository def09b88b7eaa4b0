//! Sockets and what is done with them before anybody decides anything: listen, look at the first bytes, TLS from files
//! that change, carry bytes from one socket to another, drain. No policy: who may do what is for the roles.

mod backoff;
mod connect;
mod drain;
mod first;
mod hello;
mod lanes;
mod listen;
mod pieces;
mod protocol;
mod proxy;
mod splice;
mod tls;

pub use backoff::Backoff;
pub use connect::{ConnectError, ConnectProxy, InvalidProxy, ProxyPlace, ask_connect};
pub use drain::Drain;
pub use first::{FirstError, Prefixed, read_first};
pub use hello::{ClientHello, HelloError, MAX_HELLO, client_hello};
pub use lanes::Lanes;
pub use listen::{Listener, every_address, prepare};
pub use pieces::{Piece, Pieces};
pub use protocol::{Protocol, classify};
pub use proxy::{ProxyError, ProxyHeader, proxy_header};
pub use splice::{Carried, Pipes, carry};
pub use tls::{
    AskForCertificate, Calling, Files, Live, Pair, TlsError, calling, calling_whom, roots, serving,
};
