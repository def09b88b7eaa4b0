use crate::package::filled;
use crate::{RenderError, names};

/// Path of the binary on a host.
pub(crate) const PROGRAM: &str = "/usr/local/bin/landfall";

/// URL of the binary, and its expected digest.
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

    /// Returns the command as a script for administrators and units, with an error message.
    pub(crate) fn script(&self) -> String {
        filled(include_str!("../files/install.sh"), &[("@COMMAND@", &self.command())])
    }

    /// Returns a shell line that installs the binary, and fails if its digest is wrong. The download fails if
    /// the server is below the minimum rate for 30 s, or takes longer than 10 min: on Cluster API machines,
    /// the join waits for this line.
    pub(crate) fn command(&self) -> String {
        let (url, sha256) = (names::shell_word(&self.url), &self.sha256);
        format!(
            "p={PROGRAM}; c(){{ echo {sha256} $1|sha256sum -c --status; }}; \
             c $p||{{ curl -fgsSLm600 -y30 -Y999 --connect-timeout 9 -o $p.new {url}&&c $p.new&&chmod 755 $p.new&&mv $p.new $p; }}"
        )
    }
}
