//! Redacts standard input to standard output: `redact [lines|cri|journal-export] [KNOWN-VALUES-FILE]`.
//!
//! The file has one known value per line. `cargo xtask bench redact` measures this program.

use std::io::{Read as _, Write as _};

use landfall_model::Secret;
use landfall_redact::{Format, Kind, Options, Redactor};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let format = match arguments.next().as_deref() {
        None | Some("lines") => Format::Lines,
        Some("cri") => Format::Cri,
        Some("journal-export") => Format::JournalExport,
        Some(other) => return Err(format!("`{other}` is not a format").into()),
    };
    let mut builder = Redactor::builder();
    if let Some(path) = arguments.next() {
        let kind = Kind::new("KNOWN")?;
        for value in std::fs::read_to_string(path)?.lines() {
            builder = builder.known_secret(kind, &Secret::new(value.to_owned()));
        }
    }
    let mut stream = builder.build()?.stream(Options { format, ..Options::default() });
    let (mut input, mut output) = (std::io::stdin().lock(), std::io::stdout().lock());
    let (mut bytes, mut out) = (vec![0; 64 << 10], Vec::new());
    loop {
        let len = input.read(&mut bytes)?;
        if len == 0 {
            break;
        }
        stream.push(&bytes[..len], &mut out);
        output.write_all(&out)?;
        out.clear();
    }
    let counts = stream.finish(&mut out);
    output.write_all(&out)?;
    writeln!(std::io::stderr(), "{:?}", counts.to_manifest())?;
    Ok(())
}
