//! Files and documents over HTTP, for machines that are being born: through proxies and from mirrors, with limits on time
//! and size, taken up again where they broke off, and never visible under their final name before they are whole, checked
//! and on the disk.
//!
//! ```text
//! urls ─▶ GET, or GET from byte N on ─▶ .NAME.landfall-part ─▶ hash ─▶ fsync ─▶ rename to NAME ─▶ fsync of the folder
//!             │ broken off: kept, with what the server said it was, for the next try
//!             └ wrong hash, full disk: removed
//! ```

mod client;
mod digest;
mod document;
mod error;
mod exchange;
mod file;
mod part;
mod patience;

pub use client::{Fetcher, Refusal, Source, machine_authorities};
pub use digest::{Algorithm, Digest, Hasher, is_file};
pub use error::FetchError;
pub use exchange::{Answer, Begin, Body, Exchange, Method, Saved};
pub use file::Order;
pub use patience::Patience;
