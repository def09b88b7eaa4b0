//! Removes secrets from evidence before it reaches a disk or a network: bytes in, bytes out, no I/O.
//!
//! Four passes search the same block of text, and a range redacted by any pass stays redacted:
//!
//! 1. **Known values.** The node's own secrets, given to the [`Builder`], in every encoding.
//! 2. **Structure.** Values of fields whose names identify them as secret, in YAML, JSON, INI, systemd units,
//!    XML and flags; Secret objects, Ignition's configuration dump, cloud-config, here-documents, PEM.
//! 3. **Patterns.** Shapes that identify a secret in any context (`redact.toml`), including in Base64,
//!    hexadecimal, percent encoding, backslash escapes and gzip.
//! 4. **Entropy.** Words that look random are counted for a reviewer, never redacted.
//!
//! A secret becomes `***<KIND:tag>***`. Equal secrets get equal tags within one [`Redactor`], and tags of two
//! redactors cannot be compared: their key is random and never stored. Certificates are replaced with their
//! public facts. Data that cannot be searched (too long, too deep, damaged) is removed: it becomes
//! `***WITHHELD:what***`.
//!
//! ```
//! use landfall_model::Secret;
//! use landfall_redact::{Kind, Options, Redactor};
//!
//! let password = Secret::new(String::from("correct horse"));
//! let redactor = Redactor::builder().known_secret(Kind::PASSWORD, &password).build()?;
//! let mut stream = redactor.stream(Options::default());
//! let mut out = Vec::new();
//! stream.push(b"+ login --as admin 'correct ho", &mut out);
//! stream.push(b"rse'\n", &mut out);
//! let counts = stream.finish(&mut out);
//! assert!(out.starts_with(b"+ login --as admin '***<PASSWORD:"));
//! assert_eq!(counts.redacted[&Kind::PASSWORD], 1);
//! # Ok::<(), landfall_redact::BuildError>(())
//! ```

mod arguments;
mod block;
mod certificate;
mod cri;
mod decode;
mod encode;
mod entries;
mod entropy;
mod expression;
mod field;
mod frame;
mod frames;
mod gap;
mod hit;
mod identity;
mod journal;
mod kind;
mod known;
mod literals;
mod mapped;
mod named_value;
mod nested;
mod pem_end;
mod pseudonym;
mod redactor;
mod region;
mod resolved;
mod rules;
mod runs;
mod scan;
mod secret_object;
mod stream;
mod views;

pub use entries::{Entry, EntryStream};
pub use hit::{Counts, Length};
pub use kind::{InvalidKind, Kind};
pub use known::{KNOWN_MIN, KNOWN_TOTAL_MAX};
pub use redactor::{BuildError, Builder, Redactor};
pub use stream::{Format, HOLD_MAX, Names, Options, Stream};
