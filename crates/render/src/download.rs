use crate::{RenderError, names};

/// Where the program goes on a host.
pub(crate) const PROGRAM: &str = "/usr/local/bin/landfall";

/// Where a host gets the program from, and what it must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Download {
    pub url: String,
    /// In hexadecimal.
    pub sha256: String,
}

// === impl Download ===

impl Download {
    pub(crate) fn check(&self) -> Result<(), RenderError> {
        names::url(&self.url)?;
        names::sha256(&self.sha256)
    }

    /// The same as a script for people and units, which says so when it fails.
    pub(crate) fn script(&self) -> String {
        format!(
            "#!/bin/sh\n\
             # Fetches the program, and keeps only what has the hash. May be run again at any time.\n\
             set -eu\n\
             {}||{{\n  \
               rm -f $p.new\n  \
               echo \"the program with this hash could not be had: $p is as it was\" >&2\n  \
               exit 1\n\
             }}\n",
            self.command()
        )
    }

    /// A line of shell that is done when the program is there, and fails when it is not what it must be. A server that says
    /// nothing for half a minute, or trickles for ten, has failed: on machines of Cluster API the join waits for this line.
    pub(crate) fn command(&self) -> String {
        let (url, sha256) = (names::shell_word(&self.url), &self.sha256);
        format!(
            "p={PROGRAM}; c(){{ echo {sha256} $1|sha256sum -c --status; }}; \
             c $p||{{ curl -fgsSLm600 -y30 -Y999 --connect-timeout 9 -o $p.new {url}&&c $p.new&&chmod 755 $p.new&&mv $p.new $p; }}"
        )
    }
}
