//! Object stores that speak S3 or Azure Blob: Amazon's, Google's (by its HMAC keys), Microsoft's, and everything that imitates
//! them.
//!
//! ```text
//! s3://BUCKET/PREFIX?region=R&endpoint=URL ──┐
//! gs://BUCKET/PREFIX ────────────────────────┼► Location ─┐
//! az://CONTAINER/PREFIX?account=NAME ────────┘            │
//! credentials file, read anew at each use ────────────────┼─► Bucket ─► put · get · delete · list
//! authorities (PEM) ──────────────────────────────────────┘     each signed in the store's dialect, each with a deadline
//! ```
//!
//! - **What is stored is what was meant.** A hash of the content goes along, so a store that got other bytes refuses them. S3
//!   checks SHA-256. Azure checks MD5, which is not what callers know a file by, so files are looked at before they are sent.
//! - **A wrong clock is no obstacle.** A machine in its first minutes may not know the time, and signatures hold for some
//!   minutes only. A store that complains tells its own time; it is believed for the next try, and for signatures only.
//! - **Nothing is tried again here**, except for that: the caller knows whether it has the time.

mod answer;
mod azure;
mod bucket;
mod clock;
mod content;
mod credentials;
mod dialect;
mod error;
mod location;
mod request;
mod s3;

pub use answer::{InvalidAnswer, Listed, Page, page, refusal};
pub use bucket::Bucket;
pub use content::Source;
pub use credentials::CredentialsError;
pub use error::{ObjectsError, Refusal};
pub use location::{InvalidLocation, Location};
