//! The flags of upstream's logger. There is only one log here, on standard error or in the journal.

use clap::Args;

use super::pflag::boolean;

/// Upstream logs every packet from this level on; this binary does not.
const DEBUG_FROM: u32 = 4;
const TRACE_FROM: u32 = 6;

/// Logging flags of upstream; only `--v` has an effect
#[derive(Args)]
#[command(next_help_heading = "Logging")]
pub(super) struct Klog {
    /// Upstream's log level: below 4 state changes, from 4 on reasons, from 6 on everything
    #[arg(long = "v", value_name = "LEVEL")]
    level: Option<u32>,

    /// No effect: there is one log
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = boolean)]
    logtostderr: Option<bool>,

    /// No effect: there is one log
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = boolean)]
    alsologtostderr: Option<bool>,

    /// No effect: there is one log
    #[arg(long, value_name = "SEVERITY")]
    alsologtostderrthreshold: Option<String>,

    /// No effect: there is one log
    #[arg(long, value_name = "SEVERITY")]
    stderrthreshold: Option<String>,

    /// No effect: there is one log
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = boolean)]
    legacy_stderr_threshold_behavior: Option<bool>,

    /// No effect: there is one log
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = boolean)]
    one_output: Option<bool>,

    /// No effect: nothing is logged to files
    #[arg(long, value_name = "DIR")]
    log_dir: Option<String>,

    /// No effect: nothing is logged to files
    #[arg(long, value_name = "FILE")]
    log_file: Option<String>,

    /// No effect: nothing is logged to files
    #[arg(long, value_name = "MEGABYTES")]
    log_file_max_size: Option<u64>,

    /// No effect: lines have no such header
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = boolean)]
    add_dir_header: Option<bool>,

    /// No effect: lines have no such header
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = boolean)]
    skip_headers: Option<bool>,

    /// No effect: nothing is logged to files
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = boolean)]
    skip_log_headers: Option<bool>,

    /// No effect: traces are not taken
    #[arg(long, value_name = "FILE:LINE")]
    log_backtrace_at: Option<String>,

    /// No effect: `LANDFALL_LOG` filters by module
    #[arg(long, value_name = "PATTERN=N,…")]
    vmodule: Option<String>,
}

// === impl Klog ===

impl Klog {
    /// Returns the verbosity in `-v`s.
    pub(super) fn verbosity(&self) -> u8 {
        match self.level {
            Some(TRACE_FROM..) => 3,
            Some(DEBUG_FROM..) => 2,
            _ => 1,
        }
    }

    /// Reports flags without effect, except those that request the default behavior.
    pub(super) fn complain(&self) {
        ignored(&[
            ("logtostderr", self.logtostderr == Some(false)),
            ("alsologtostderr", self.alsologtostderr == Some(true)),
            ("alsologtostderrthreshold", self.alsologtostderrthreshold.is_some()),
            ("stderrthreshold", self.stderrthreshold.is_some()),
            ("legacy-stderr-threshold-behavior", self.legacy_stderr_threshold_behavior == Some(false)),
            ("one-output", self.one_output == Some(true)),
            ("log-dir", self.log_dir.is_some()),
            ("log-file", self.log_file.is_some()),
            ("log-file-max-size", self.log_file_max_size.is_some()),
            ("add-dir-header", self.add_dir_header == Some(true)),
            ("skip-headers", self.skip_headers == Some(true)),
            ("skip-log-headers", self.skip_log_headers == Some(true)),
            ("log-backtrace-at", self.log_backtrace_at.is_some()),
            ("vmodule", self.vmodule.is_some()),
        ]);
    }
}

/// Flags of server and agent that only upstream needs
#[derive(Args)]
#[command(next_help_heading = "Without effect")]
pub(super) struct IgnoredByBoth {
    /// No effect: queues are bounded in bytes, for each tunnel
    #[arg(long, value_name = "NUMBER")]
    xfr_channel_size: Option<u64>,

    /// No effect: there is no such profile
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = boolean)]
    enable_profiling: Option<bool>,

    /// No effect: there is no such profile
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = boolean)]
    enable_contention_profiling: Option<bool>,

    /// No effect: full queues are counted in the metrics
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = boolean)]
    warn_on_channel_limit: Option<bool>,
}

impl IgnoredByBoth {
    pub(super) fn complain(&self) {
        ignored(&[
            ("xfr-channel-size", self.xfr_channel_size.is_some()),
            ("enable-profiling", self.enable_profiling == Some(true)),
            ("enable-contention-profiling", self.enable_contention_profiling == Some(true)),
            ("warn-on-channel-limit", self.warn_on_channel_limit == Some(true)),
        ]);
    }
}

/// Reports that a given flag has no effect; its help contains the reason.
pub(super) fn ignored(flags: &[(&str, bool)]) {
    for (flag, _) in flags.iter().filter(|(_, given)| *given) {
        tracing::warn!(flag, "this flag has no effect here; `--help` says why");
    }
}
