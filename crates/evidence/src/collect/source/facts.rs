//! Many small files as one: `path = value` lines, such as the kernel's settings.

use super::Source;
use crate::collect::forbidden;
use crate::collect::host::Host;
use crate::collect::sink::{Framing, Sink, Trouble};

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
                for path in host.find(pattern)? {
                    let value = host.fact(&path).filter(|_| forbidden::reason(&path).is_none());
                    if let Some(value) = value {
                        any = true;
                        file.write(
                            format!("{} = {}\n", path.display(), value.replace('\n', " ; ")).as_bytes(),
                        )?;
                    }
                }
            }
            if any { Ok(()) } else { Err(Trouble::Absent) }
        });
        Ok(())
    }
}
