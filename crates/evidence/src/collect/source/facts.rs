//! Many small files combined into one: `path = value` lines, such as kernel settings.

use super::Source;
use crate::collect::forbidden;
use crate::collect::host::Host;
use crate::collect::piece::Trouble;
use crate::collect::sink::{Framing, Sink, shown};

pub(super) struct Facts {
    pub(super) to: String,
    pub(super) paths: Vec<String>,
}

// === impl Facts ===

impl Source for Facts {
    fn collect(&self, host: &Host, sink: &mut Sink) -> Result<(), Trouble> {
        sink.file(&self.to, "facts", Framing::Lines, |file| {
            let mut any = false;
            for pattern in &self.paths {
                for path in host.find(pattern, file.deadline())? {
                    if let Some(value) = forbidden::fact(host, &path) {
                        any = true;
                        let name = shown(&path.to_string_lossy());
                        file.text(&format!("{name} = {}\n", value.replace('\n', " ; ")))?;
                    }
                }
            }
            if any { Ok(()) } else { Err(Trouble::Absent) }
        });
        Ok(())
    }
}
