//! Object stores that speak S3: Amazon's, Google's (by its HMAC keys), and everything that imitates them.
//!
//! ```text
//! s3://BUCKET/PREFIX?region=R&endpoint=URL ─► Location ─┐
//! credentials file, read anew at each use ──────────────┼─► Bucket ─► put · get · head · delete · list
//! authorities (PEM) ────────────────────────────────────┘     each signed (version 4), each with a deadline
//! ```
//!
//! - **What is stored is what was meant.** The hash of the content is part of what is signed, so a store that got other
//!   bytes refuses them.
//! - **A wrong clock is no obstacle.** A machine in its first minutes may not know the time, and signatures hold for some
//!   minutes only. A store that complains tells its own time; it is believed for the next try, and for signatures only.
//! - **Nothing is tried again here**, except for that: the caller knows whether it has the time.

mod answer;
mod bucket;
mod credentials;
mod location;
mod signature;

pub use answer::{InvalidAnswer, Listed, Page, page, refusal};
pub use bucket::{Bucket, Found, ObjectsError, Refusal, Source};
pub use credentials::{Credentials, CredentialsError};
pub use location::{InvalidLocation, Location};
