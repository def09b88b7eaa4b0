//! A live machine, or a mounted disk, as something to read: it is collected into a bundle on one side of a pipe while the
//! other side reads that bundle. Nothing is written to the machine.

use std::io::{self, PipeWriter};
use std::thread;

use jiff::Timestamp;
use landfall_model::chain;

use super::Input;
use crate::bundle::{BundleWriter, Packing, bundle_id};
use crate::collect::{Host, Plan, collect};

/// Collects what the plan names, as it is read.
///
/// A failure of the collection cuts the bundle; the report then says that the source could not be read on.
pub fn machine(host: Host, plan: Plan) -> io::Result<Input> {
    let (reader, writer) = io::pipe()?;
    thread::Builder::new().name("collect".to_owned()).spawn(move || fill(writer, host, &plan))?;
    Ok(Input::Stream { name: "machine".to_owned(), reader: Box::new(reader) })
}

fn fill(writer: PipeWriter, host: Host, plan: &Plan) {
    let started = Timestamp::now();
    // Packed because that is the one form a bundle has; the fast one, because nobody keeps it.
    let mut bundle = BundleWriter::new(writer, Packing::Zstd, &bundle_id(started), host.identity(), started);
    if let Err(error) = collect(host, plan, &mut bundle, &|_| {}) {
        tracing::error!(error = %chain(&error), "Collecting ended early.");
        return;
    }
    if let Err(error) = bundle.finish(Timestamp::now()) {
        tracing::error!(error = %chain(&error), "Collecting ended early.");
    }
}
