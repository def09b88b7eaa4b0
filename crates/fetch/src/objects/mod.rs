//! Object stores with the S3 or Azure Blob protocol: Amazon's, Google's (with its HMAC keys), Microsoft's, and
//! compatible ones.
//!
//! ```text
//! s3://BUCKET/PREFIX?region=R&endpoint=URL ──┐
//! gs://BUCKET/PREFIX ────────────────────────┼► Location ─┐
//! az://CONTAINER/PREFIX?account=NAME ────────┘            │
//! credentials file, reread at each use, or cloud identity ─┼─► Bucket ─► put · get · delete · list
//! CAs (PEM) ──────────────────────────────────────────────┘     each signed in the store's protocol, each with a timeout
//! ```
//!
//! - **The store verifies the content.** Each upload includes a hash, so a store that received other bytes rejects
//!   them. S3 verifies SHA-256. Azure verifies MD5, which callers do not use, so files are hashed before they are
//!   sent.
//! - **A wrong local clock is corrected.** A machine may not know the time in its first minutes, and signatures are
//!   valid for some minutes only. A store that rejects a signature reports its own time, which is then used for the
//!   retry, and for signatures only.
//! - **Nothing else is retried here**: the caller knows whether it has the time.

mod answer;
mod azure;
mod bucket;
mod clock;
mod content;
mod credentials;
mod dialect;
mod error;
mod identity;
mod location;
mod request;
mod s3;

pub use answer::{InvalidAnswer, Listed, Page, page, refusal};
pub use bucket::Bucket;
pub use content::Source;
pub use credentials::{Credentials, CredentialsError};
pub use error::{ObjectsError, Refusal};
pub use location::{InvalidLocation, Location};
