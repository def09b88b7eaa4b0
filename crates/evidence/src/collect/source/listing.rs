//! Names, sizes, modes and times of files, without their content.

use jiff::Timestamp;

use super::Source;
use crate::collect::host::Host;
use crate::collect::piece::Trouble;
use crate::collect::sink::{Framing, Sink, shown};

pub(super) struct Listing {
    pub(super) to: String,
    pub(super) paths: Vec<String>,
}

// === impl Listing ===

impl Source for Listing {
    fn collect(&self, host: &Host, sink: &mut Sink) -> Result<(), Trouble> {
        sink.file(&self.to, "listing", Framing::Lines, |file| {
            let mut any = false;
            for pattern in &self.paths {
                for path in host.find(pattern, file.deadline())? {
                    let name = shown(&path.to_string_lossy());
                    let line = match host.stat(&path) {
                        Ok(stat) => {
                            let time = Timestamp::from_second(stat.st_mtime).unwrap_or_default();
                            let (mode, owner, group) = (stat.st_mode & 0o7777, stat.st_uid, stat.st_gid);
                            format!("{mode:04o} {owner}:{group} {:>10} {time} {name}\n", stat.st_size)
                        }
                        Err(error) => format!("cannot be read: {error}: {name}\n"),
                    };
                    any = true;
                    file.text(&line)?;
                }
            }
            if any { Ok(()) } else { Err(Trouble::Absent) }
        });
        Ok(())
    }
}
