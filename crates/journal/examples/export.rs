//! Prints journal files or directories in export format, like `journalctl --output=export --quiet --file=…`.

use std::io::{self, Write};
use std::path::PathBuf;

use landfall_journal::Journal;

const FLUSH_AT: usize = 256 * 1024;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut journal = Journal::open(std::env::args_os().skip(1).map(PathBuf::from));
    let mut out = io::stdout().lock();
    let mut buffer = Vec::with_capacity(2 * FLUSH_AT);
    while let Some(mut entry) = journal.next() {
        entry.write_export(&mut buffer)?;
        if buffer.len() >= FLUSH_AT {
            out.write_all(&buffer)?;
            buffer.clear();
        }
    }
    out.write_all(&buffer)?;
    for problem in journal.problems() {
        writeln!(io::stderr(), "{}: {}", problem.path.display(), problem.error)?;
    }
    for (path, damage) in journal.damage() {
        writeln!(io::stderr(), "{} {damage}", path.display())?;
    }
    Ok(())
}
