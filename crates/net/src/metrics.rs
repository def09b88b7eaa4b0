//! Metrics and their text format for Prometheus (`text/plain; version=0.0.4`).
//!
//! The `prometheus-client` crate is unsuitable: its format appends `_total` to every counter. The tunnel must keep the
//! metric names of Konnectivity, some of which lack that suffix.

use std::fmt::{Display, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The media type of [`MetricsText`].
pub const METRICS_MEDIA_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A number that only increases.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

/// A current number of objects.
#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

/// An increment of a [`Gauge`] until it is dropped.
#[derive(Debug)]
pub struct GaugeGuard(Arc<Gauge>);

/// Durations in buckets.
#[derive(Debug)]
pub struct Histogram {
    /// Upper bounds in seconds.
    bounds: &'static [f64],
    /// One per bound, and one above the last.
    buckets: Vec<AtomicU64>,
    microseconds: AtomicU64,
}

/// A timer that observes its own lifetime in a [`Histogram`].
#[derive(Debug)]
pub struct Timer {
    histogram: Arc<Histogram>,
    started: Instant,
}

/// The type of a metric, with Prometheus's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricType {
    Counter,
    Gauge,
    Histogram,
}

/// Metrics as text.
#[derive(Debug, Default)]
pub struct MetricsText {
    prefix: String,
    text: String,
}

/// One metric in a [`MetricsText`], with a line per combination of labels.
#[derive(Debug)]
pub struct MetricFamily<'t> {
    name: String,
    text: &'t mut String,
}

type Labels<'a> = &'a [(&'a str, &'a str)];

// === impl Counter ===

impl Counter {
    pub fn increment(&self) {
        self.add(1);
    }

    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

// === impl Gauge ===

impl Gauge {
    pub fn guard(self: &Arc<Self>) -> GaugeGuard {
        self.0.fetch_add(1, Ordering::Relaxed);
        GaugeGuard(Arc::clone(self))
    }

    /// Returns `None` if `limit` guards exist.
    pub fn try_guard(self: &Arc<Self>, limit: u64) -> Option<GaugeGuard> {
        let more = |count: u64| (count < limit).then_some(count + 1);
        let counted = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        counted.is_ok().then(|| GaugeGuard(Arc::clone(self)))
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Drop for GaugeGuard {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

// === impl Histogram ===

impl Histogram {
    pub fn new(bounds: &'static [f64]) -> Self {
        let buckets = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self { bounds, buckets, microseconds: AtomicU64::new(0) }
    }

    pub fn observe(&self, time: Duration) {
        let seconds = time.as_secs_f64();
        let bucket = self.bounds.iter().position(|bound| seconds <= *bound).unwrap_or(self.bounds.len());
        if let Some(bucket) = self.buckets.get(bucket) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
        let microseconds = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.microseconds.fetch_add(microseconds, Ordering::Relaxed);
    }

    pub fn timer(self: &Arc<Self>) -> Timer {
        Timer { histogram: Arc::clone(self), started: Instant::now() }
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.histogram.observe(self.started.elapsed());
    }
}

// === impl MetricType ===

impl MetricType {
    fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

// === impl MetricsText ===

impl MetricsText {
    /// Starts a text in which every metric name begins with `prefix`.
    pub fn new(prefix: &str) -> Self {
        Self { prefix: prefix.to_owned(), text: String::new() }
    }

    pub fn family(&mut self, name: &str, kind: MetricType, help: &str) -> MetricFamily<'_> {
        let name = format!("{}{name}", self.prefix);
        // Writing to a string cannot fail.
        let _ = write!(self.text, "# HELP {name} {help}\n# TYPE {name} {}\n", kind.name());
        MetricFamily { name, text: &mut self.text }
    }

    pub fn counter(&mut self, name: &str, help: &str, counter: &Counter) {
        self.family(name, MetricType::Counter, help).value(&[], counter.get());
    }

    pub fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.family(name, MetricType::Gauge, help).value(&[], value);
    }

    pub fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.family(name, MetricType::Histogram, help).histogram(&[], histogram);
    }

    pub fn finish(self) -> String {
        self.text
    }
}

// === impl MetricFamily ===

impl MetricFamily<'_> {
    pub fn value(&mut self, labels: Labels<'_>, value: impl Display) -> &mut Self {
        self.line("", labels, None, value);
        self
    }

    pub fn histogram(&mut self, labels: Labels<'_>, histogram: &Histogram) -> &mut Self {
        let mut total = 0;
        let bounds = histogram.bounds.iter().map(f64::to_string).chain(["+Inf".to_owned()]);
        for (bound, bucket) in bounds.zip(&histogram.buckets) {
            total += bucket.load(Ordering::Relaxed);
            self.line("_bucket", labels, Some(&bound), total);
        }
        let sum = Duration::from_micros(histogram.microseconds.load(Ordering::Relaxed)).as_secs_f64();
        self.line("_sum", labels, None, sum);
        self.line("_count", labels, None, total);
        self
    }

    fn line(&mut self, suffix: &str, labels: Labels<'_>, bound: Option<&str>, value: impl Display) {
        let labels = labels.iter().copied().chain(bound.map(|bound| ("le", bound)));
        let labels: Vec<String> =
            labels.map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let _ = writeln!(self.text, "{}{suffix}{labels} {value}", self.name);
    }
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_follows_the_prometheus_format() {
        let histogram = Histogram::new(&[0.5, 2.0]);
        for millis in [100, 1000, 9000] {
            histogram.observe(Duration::from_millis(millis));
        }
        let mut text = MetricsText::new("x_");
        text.histogram("seconds", "Time", &histogram);
        text.family("calls_total", MetricType::Counter, "Calls")
            .value(&[("code", "200"), ("reason", "a \"b\"\\\n")], 2)
            .value(&[("code", "0"), ("reason", "")], 1);
        text.gauge("things", "Things", 4);
        let expected = "\
# HELP x_seconds Time
# TYPE x_seconds histogram
x_seconds_bucket{le=\"0.5\"} 1
x_seconds_bucket{le=\"2\"} 2
x_seconds_bucket{le=\"+Inf\"} 3
x_seconds_sum 10.1
x_seconds_count 3
# HELP x_calls_total Calls
# TYPE x_calls_total counter
x_calls_total{code=\"200\",reason=\"a \\\"b\\\"\\\\\\n\"} 2
x_calls_total{code=\"0\",reason=\"\"} 1
# HELP x_things Things
# TYPE x_things gauge
x_things 4
";
        assert_eq!(text.finish(), expected);
    }

    #[test]
    fn gauge_counts_guards_up_to_its_limit() {
        let gauge = Arc::new(Gauge::default());
        let guards: Vec<_> = (0..5).filter_map(|_| gauge.try_guard(2)).collect();
        assert_eq!((guards.len(), gauge.get()), (2, 2));
        drop(guards);
        assert_eq!(gauge.get(), 0);
        assert!(gauge.try_guard(2).is_some());
        assert!(gauge.try_guard(0).is_none());
    }
}
