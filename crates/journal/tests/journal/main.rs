//! The reader against systemd's own tools: files of `systemd-journal-remote`, with `journalctl` as the oracle.

#![expect(clippy::unwrap_used, reason = "a test may fail where it stands")]
#![expect(
    clippy::cast_possible_truncation,
    reason = "the numbers are of files these tests made, on 64-bit machines"
)]

mod corpus;
mod damage;
mod follow;
mod formats;
mod many;
mod properties;
mod streams;
mod workshop;
