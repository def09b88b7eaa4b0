//! Writes data to standard output, everything else to standard error.

use std::borrow::Cow;
use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

use anyhow::{Context as _, Result};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use landfall_diagnose::present::Size;

/// Width of text when the terminal does not report one.
const DEFAULT_WIDTH: usize = 100;

/// Height of text when the terminal does not report one.
const DEFAULT_HEIGHT: usize = 40;

/// A progress bar on standard error for long operations; disabled when that is not a terminal.
pub(crate) struct Progress {
    bar: ProgressBar,
}

/// Prints data. A closed pipe (`| head`) is not an error and does not change the exit code.
pub(crate) fn print(text: &str) -> Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(error).context("write to standard output")
        }
        _ => Ok(()),
    }
}

/// Replaces characters that control a terminal, or change the direction of surrounding text, by visible marks.
///
/// Applied to text from other systems.
pub(crate) fn harmless(text: &str) -> String {
    let hidden = |c| matches!(c, '\u{061c}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}');
    text.chars().map(|c| if c.is_control() || hidden(c) { '\u{fffd}' } else { c }).collect()
}

/// Prints a message for people: one line, or several where a program is quoted.
pub(crate) fn say(text: &str) {
    let mut stderr = io::stderr().lock();
    for line in text.lines() {
        // Errors are ignored: standard error may be closed.
        let _ = writeln!(stderr, "{}", harmless(line));
    }
}

/// Prints one line with the error, and one with the hint.
pub(crate) fn complain(error: &str, hint: Option<&str>) {
    let (red, plain) = if colour_on_stderr() { ("\x1b[1;31m", "\x1b[0m") } else { ("", "") };
    let error = harmless(error);
    let mut stderr = io::stderr().lock();
    // Errors are ignored: standard error may be closed.
    let _ = writeln!(stderr, "{red}error{plain}: {error}");
    if let Some(hint) = hint {
        let _ = writeln!(stderr, "hint: {hint}");
    }
}

pub(crate) fn colour_on_stderr() -> bool {
    io::stderr().is_terminal() && colour_is_welcome()
}

pub(crate) fn colour_on_stdout() -> bool {
    io::stdout().is_terminal() && colour_is_welcome()
}

fn colour_is_welcome() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

pub(crate) fn size() -> Size {
    let told = rustix::termios::tcgetwinsize(io::stdout()).ok();
    let told = told.map(|size| Size { width: usize::from(size.ws_col), height: usize::from(size.ws_row) });
    told.filter(|size| size.width > 0 && size.height > 0)
        .unwrap_or(Size { width: DEFAULT_WIDTH, height: DEFAULT_HEIGHT })
}

// === impl Progress ===

impl Progress {
    pub(crate) fn start(doing: impl Into<Cow<'static, str>>, total: Option<u64>) -> Self {
        let bar = if io::stderr().is_terminal() {
            ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr())
        } else {
            ProgressBar::hidden()
        };
        let template = match total {
            Some(_) => "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec}",
            None => "{msg} {spinner} {bytes} {bytes_per_sec}",
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.set_message(doing);
        bar.enable_steady_tick(Duration::from_millis(200));
        Self { bar }
    }

    /// Creates a bar that counts items; [`Self::item`] names the current one.
    pub(crate) fn items(doing: &'static str) -> Self {
        let progress = Self::start(doing, None);
        if let Ok(style) = ProgressStyle::with_template("{prefix} {spinner} {bytes} {wide_msg}") {
            progress.bar.set_style(style);
        }
        progress.bar.set_prefix(doing);
        progress.bar.set_message("");
        progress
    }

    pub(crate) fn item(&self, name: &str, number: usize, of: usize) {
        const CELLS: usize = 24;
        let full = (number.saturating_sub(1) * CELLS).checked_div(of).unwrap_or(0);
        let bar: String = (0..CELLS).map(|cell| if cell < full { '█' } else { '░' }).collect();
        self.bar.set_message(format!("{bar} {number}/{of} {name}"));
    }

    pub(crate) fn total(&self) -> Option<u64> {
        self.bar.length()
    }

    pub(crate) fn reach(&self, bytes: u64) {
        self.bar.set_position(bytes);
    }

    pub(crate) fn add(&self, bytes: u64) {
        self.bar.inc(bytes);
    }

    /// Clears the bar, because the result is printed next.
    pub(crate) fn finish(self) {
        self.bar.finish_and_clear();
    }
}
