//! Logs of several programs in one stream, with a heading each: `minikube logs`, `tail -v`, `head -v`.

use memchr::memmem;

/// Maximum number of headings per chunk; real reports have fewer.
const MAX_HEADINGS: usize = 4096;

/// Maximum bytes of a heading.
const MAX_HEADING: usize = 256;

/// The headings of a chunk, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sections {
    headings: Vec<Heading>,
}

#[derive(Clone, Debug)]
struct Heading {
    offset: usize,
    line: u64,
    name: String,
}

// === impl Sections ===

impl Sections {
    /// Finds the headings of a chunk whose first line has the number `first_line`.
    pub(crate) fn of(chunk: &[u8], first_line: u64) -> Self {
        let mut headings = Vec::new();
        let (mut line, mut counted) = (first_line, 0);
        for offset in memmem::find_iter(chunk, b"==> ").filter(|at| *at == 0 || chunk[at - 1] == b'\n') {
            if headings.len() == MAX_HEADINGS {
                break;
            }
            let rest = &chunk[offset + 4..chunk.len().min(offset + MAX_HEADING)];
            let text = rest.split(|byte| *byte == b'\n').next().unwrap_or_default();
            let Some(name) = text.trim_ascii_end().strip_suffix(b"<==") else { continue };
            line += memchr::memchr_iter(b'\n', &chunk[counted..offset]).count() as u64;
            counted = offset;
            let name = String::from_utf8_lossy(name.trim_ascii());
            // `coredns [3f2a…]`: the program, without the container ID.
            let name = name.split(" [").next().unwrap_or_default().to_owned();
            headings.push(Heading { offset, line, name });
        }
        Self { headings }
    }

    pub(crate) fn at(&self, offset: usize) -> Option<&str> {
        let after = self.headings.partition_point(|heading| heading.offset <= offset);
        Some(self.headings.get(after.checked_sub(1)?)?.name.as_str())
    }

    /// Returns the line number of the first heading: earlier lines belong to the section of the previous
    /// chunk.
    pub(crate) fn first_line(&self) -> Option<u64> {
        self.headings.first().map(|heading| heading.line)
    }

    /// Returns the section that continues after the chunk.
    pub(crate) fn last(&self) -> Option<&str> {
        self.headings.last().map(|heading| heading.name.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_belong_to_the_heading_above_them() {
        let text = b"x\n==> kubelet <==\na\n==> coredns [3f2a] <==\nb ==> no <==\n==> cut";
        let sections = Sections::of(text, 11);
        let at = |needle: &[u8]| sections.at(memmem::find(text, needle).unwrap());
        assert_eq!(at(b"x"), None);
        assert_eq!(at(b"a\n"), Some("kubelet"));
        assert_eq!(at(b"b "), Some("coredns"));
        assert_eq!(at(b"==> cut"), Some("coredns"));
        assert_eq!((sections.first_line(), sections.last()), (Some(12), Some("coredns")));
        assert_eq!(Sections::of(b"nothing", 1).last(), None);
    }
}
