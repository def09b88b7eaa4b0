//! Network infrastructure shared by all roles: listeners, protocol detection, TLS from files that change, byte relays,
//! drain. Authorization is up to the roles.

pub mod dbus;
pub mod http;
pub mod metrics;
pub mod nats;
pub mod serve;
pub mod websocket;

mod backoff;
mod connect;
mod drain;
mod first;
mod hello;
mod lanes;
mod listen;
mod network;
mod notify;
mod pieces;
mod protocol;
mod proxy;
mod splice;
mod tls;

pub use backoff::{Backoff, InvalidBackoff, Retries, varied};
pub use connect::{ConnectError, ConnectProxy, InvalidProxy, ProxyPlace};
pub use drain::Drain;
pub use first::{FirstError, Prefixed, read_first};
pub use hello::{ClientHello, HelloError, MAX_HELLO, client_hello};
pub use lanes::Lanes;
pub use listen::{Listener, every_address, prepare};
pub use network::{InvalidNetwork, Network};
pub use notify::{InvalidSocket, Notify};
pub use pieces::{Piece, Pieces};
pub use protocol::{Protocol, classify};
pub use proxy::{ProxyError, ProxyHeader, proxy_header};
pub use splice::{Carried, Pipes, carry};
pub use tls::{
    CertificateFiles, ClientAuth, ClientCertificates, ClientTls, FileSnapshot, Identity, Reloading,
    ServerTlsFiles, ServerTlsOptions, ServerTrust, TlsError, TlsPolicy, TlsVersion, client_config,
    client_verifier, parse_roots, roots, server_config, system_roots,
};
