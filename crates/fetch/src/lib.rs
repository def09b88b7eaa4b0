//! Downloads files and documents over HTTP to machines during their bootstrap.
//!
//! Downloads use proxies and mirrors, with limits on time and size, and interrupted ones are resumed. A file gets its
//! final name only when it is complete, verified and on the disk.
//!
//! ```text
//! urls ─▶ GET, or GET from byte N on ─▶ .NAME.landfall-part ─▶ hash ─▶ fsync ─▶ rename to NAME ─▶ fsync of the directory
//!             │ interrupted: kept with its validator, for the next attempt
//!             └ wrong hash, full disk: removed
//! ```
//!
//! [`objects`] puts, gets, deletes and lists objects in a bucket.

mod client;
mod digest;
mod document;
mod error;
mod exchange;
mod file;
pub mod objects;
mod part;
mod patience;

pub use client::{Fetcher, Refusal, Source};
pub use digest::{Algorithm, Digest, Hasher, is_file};
pub use error::FetchError;
pub use exchange::{Answer, Begin, Body, Exchange, Method, Saved};
pub use file::Order;
pub use patience::Patience;
