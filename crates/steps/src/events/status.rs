//! The status line of `systemctl status`.

use landfall_model::step::Event;
use landfall_net::Notify;

use super::{Sink, storyline::Titles};

/// Width of a line on a screen; systemd truncates it there anyway.
const MAX_STATUS_BYTES: usize = 256;

/// Sends `STATUS=` to the service manager whenever the line changes.
#[derive(Debug)]
pub struct StatusLine {
    manager: Notify,
    titles: Titles,
    last: String,
}

// === impl StatusLine ===

impl StatusLine {
    pub fn new(manager: Notify) -> Self {
        Self { manager, titles: Titles::default(), last: String::new() }
    }
}

impl Sink for StatusLine {
    fn take(&mut self, event: &Event) {
        self.titles.learn(event);
        let Some(line) = self.titles.line(event) else { return };
        let mut line = line.replace(['\n', '\r'], " ");
        let end = (0..=line.len().min(MAX_STATUS_BYTES)).rev().find(|end| line.is_char_boundary(*end));
        line.truncate(end.unwrap_or(0));
        if line == self.last {
            return;
        }
        match self.manager.send(&format!("STATUS={line}")) {
            Ok(()) => self.last = line,
            Err(error) => tracing::debug!(%error, "status line not sent"),
        }
    }
}
