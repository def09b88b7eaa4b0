//! Counters under upstream's names, so that dashboards and alerts go on working.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use landfall_cluster::Error;

use crate::packet::Packet;

pub(crate) const SERVER: &str = "konnectivity_network_proxy_server_";
pub(crate) const AGENT: &str = "konnectivity_network_proxy_agent_";

pub(crate) const SERVER_DIAL_BUCKETS: &[f64] =
    &[0.000_001, 0.000_01, 0.000_1, 0.005, 0.025, 0.1, 0.5, 2.5, 12.5];
pub(crate) const AGENT_DIAL_BUCKETS: &[f64] = &[0.005, 0.025, 0.1, 0.5, 2.5, 10.0, 30.0];
pub(crate) const CONNECTION_BUCKETS: &[f64] =
    &[1.0, 5.0, 15.0, 30.0, 60.0, 300.0, 900.0, 1800.0, 3600.0, 14_400.0, 43_200.0, 86_400.0];

/// Calls to the API server take from milliseconds to its deadline.
const CALL_BUCKETS: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
/// Different answers remembered; there are a handful.
const MAX_ANSWERS: usize = 64;

const KINDS: [&str; 9] =
    ["DIAL_REQ", "DIAL_RSP", "CLOSE_REQ", "CLOSE_RSP", "DATA", "DIAL_CLS", "DRAIN", "CREDIT", "UNKNOWN"];
const CODES: [&str; 3] = ["Canceled", "Internal", "Unavailable"];
const SEGMENTS: [&str; 4] = ["from_client", "to_client", "from_agent", "to_agent"];

/// Where a packet was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Segment {
    FromClient = 0,
    ToClient = 1,
    FromAgent = 2,
    ToAgent = 3,
}

/// How a stream broke, in gRPC's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Broke {
    Canceled = 0,
    Internal = 1,
    Unavailable = 2,
}

/// Packets by segment and kind, and streams that broke.
#[derive(Debug, Default)]
pub(crate) struct Packets {
    counts: [[AtomicU64; KINDS.len()]; SEGMENTS.len()],
    errors: [[AtomicU64; CODES.len()]; SEGMENTS.len()],
}

/// Calls to the API server, by its answer.
#[derive(Debug, Default)]
pub(crate) struct Calls(Mutex<Answers>);

#[derive(Debug, Default)]
struct Answers {
    counts: BTreeMap<(u16, String), u64>,
    times: BTreeMap<u16, Histogram>,
}

/// What one link has carried.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) sent: AtomicU64,
    pub(crate) received: AtomicU64,
    /// Tunnels that wait for a slow reader, when they were last looked at.
    pub(crate) stalled: AtomicUsize,
    /// Tunnels closed because their reader was too slow.
    pub(crate) broken_off: Counter,
}

/// A number that only grows.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

/// How many of something there are now.
#[derive(Debug, Default)]
pub(crate) struct Gauge(AtomicU64);

/// Counts for as long as it lives.
#[derive(Debug)]
pub(crate) struct Held(Arc<Gauge>);

#[derive(Debug)]
pub(crate) struct Histogram {
    bounds: &'static [f64],
    buckets: Vec<AtomicU64>,
    microseconds: AtomicU64,
}

/// Observes how long it lived.
#[derive(Debug)]
pub(crate) struct Timed {
    histogram: Arc<Histogram>,
    started: Instant,
}

/// A page of metrics in the making.
#[derive(Debug, Default)]
pub(crate) struct Page(String);

// === impl Packets ===

impl Packets {
    /// One of each, so that a page shows all there may be.
    #[cfg(feature = "reference")]
    pub(crate) fn one_of_each(&self) {
        for count in self.counts.iter().flatten().chain(self.errors.iter().flatten()) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn count(&self, segment: Segment, packet: &Packet) {
        let kind = match packet {
            Packet::DialRequest { .. } => 0,
            Packet::DialResponse { .. } => 1,
            Packet::CloseRequest { .. } => 2,
            Packet::CloseResponse { .. } => 3,
            Packet::Data { .. } => 4,
            Packet::CloseDial { .. } => 5,
            Packet::Drain => 6,
            Packet::Credit { .. } => 7,
            Packet::Unknown => 8,
        };
        self.counts[segment as usize][kind].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn broke(&self, segment: Segment, how: Broke) {
        self.errors[segment as usize][how as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn write(&self, page: &mut Page, prefix: &str) {
        let name = format!("{prefix}stream_packets_total");
        page.head(&name, "counter", "Packets by segment and type");
        for (segment, counts) in SEGMENTS.iter().zip(&self.counts) {
            for (kind, count) in KINDS.iter().zip(counts) {
                let count = count.load(Ordering::Relaxed);
                if count > 0 {
                    page.line(&format!("{name}{{segment=\"{segment}\",packet_type=\"{kind}\"}}"), count);
                }
            }
        }
        let name = format!("{prefix}stream_errors_total");
        page.head(&name, "counter", "Streams that broke, by segment and gRPC code");
        for (segment, counts) in SEGMENTS.iter().zip(&self.errors) {
            for (code, count) in CODES.iter().zip(counts) {
                let count = count.load(Ordering::Relaxed);
                if count > 0 {
                    let labels = format!("segment=\"{segment}\",code=\"{code}\",packet_type=\"Unknown\"");
                    page.line(&format!("{name}{{{labels}}}"), count);
                }
            }
        }
    }
}

// === impl Calls ===

impl Calls {
    pub(crate) fn observe<T>(&self, answer: &Result<T, Error>, took: Duration) {
        // Without an answer there is no status.
        let (code, reason) = match answer {
            Ok(_) => (200, ""),
            Err(error) => error.answer().unwrap_or((0, "")),
        };
        let mut answers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if answers.counts.len() < MAX_ANSWERS || answers.counts.contains_key(&(code, reason.to_owned())) {
            *answers.counts.entry((code, reason.to_owned())).or_default() += 1;
            answers.times.entry(code).or_insert_with(|| Histogram::new(CALL_BUCKETS)).observe(took);
        }
    }

    /// `label` is what this side calls the status.
    pub(crate) fn write(&self, page: &mut Page, total: &str, latency: &str, label: &str) {
        let answers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        page.head(total, "counter", "Calls to the API server, by its answer");
        for ((code, reason), count) in &answers.counts {
            let reason = reason.replace(['"', '\\', '\n'], "_");
            page.line(&format!("{total}{{{label}=\"{code}\",reason=\"{reason}\"}}"), count);
        }
        page.head(latency, "histogram", "Time to the API server's answer");
        for (code, times) in &answers.times {
            times.write_series(page, latency, &format!("{label}=\"{code}\""));
        }
    }
}

// === impl Counter ===

impl Counter {
    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

// === impl Gauge ===

impl Gauge {
    pub(crate) fn hold(self: &Arc<Self>) -> Held {
        self.0.fetch_add(1, Ordering::Relaxed);
        Held(Arc::clone(self))
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

// === impl Held ===

impl Drop for Held {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

// === impl Histogram ===

impl Histogram {
    pub(crate) fn new(bounds: &'static [f64]) -> Self {
        Self {
            bounds,
            buckets: (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect(),
            microseconds: AtomicU64::new(0),
        }
    }

    pub(crate) fn observe(&self, time: Duration) {
        let seconds = time.as_secs_f64();
        let bucket = self.bounds.iter().position(|bound| seconds <= *bound).unwrap_or(self.bounds.len());
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        let microseconds = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.microseconds.fetch_add(microseconds, Ordering::Relaxed);
    }

    pub(crate) fn time(self: &Arc<Self>) -> Timed {
        Timed { histogram: Arc::clone(self), started: Instant::now() }
    }

    pub(crate) fn write(&self, page: &mut Page, name: &str, help: &str) {
        page.head(name, "histogram", help);
        self.write_series(page, name, "");
    }

    fn write_series(&self, page: &mut Page, name: &str, labels: &str) {
        let (comma, braced) =
            if labels.is_empty() { ("", String::new()) } else { (",", format!("{{{labels}}}")) };
        let mut total = 0;
        let bounds = self.bounds.iter().map(f64::to_string).chain(["+Inf".to_owned()]);
        for (bound, bucket) in bounds.zip(&self.buckets) {
            total += bucket.load(Ordering::Relaxed);
            page.line(&format!("{name}_bucket{{{labels}{comma}le=\"{bound}\"}}"), total);
        }
        let sum = Duration::from_micros(self.microseconds.load(Ordering::Relaxed)).as_secs_f64();
        page.line(&format!("{name}_sum{braced}"), sum);
        page.line(&format!("{name}_count{braced}"), total);
    }
}

// === impl Timed ===

impl Drop for Timed {
    fn drop(&mut self) {
        self.histogram.observe(self.started.elapsed());
    }
}

// === impl Page ===

impl Page {
    pub(crate) fn head(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string cannot fail.
        let _ = write!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    pub(crate) fn line(&mut self, series: &str, value: impl std::fmt::Display) {
        let _ = writeln!(self.0, "{series} {value}");
    }

    /// A metric of one series.
    pub(crate) fn single(&mut self, name: &str, kind: &str, help: &str, value: impl std::fmt::Display) {
        self.head(name, kind, help);
        self.line(name, value);
    }

    pub(crate) fn finish(self) -> String {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_written_as_prometheus_reads_it() {
        let (packets, histogram) = (Packets::default(), Histogram::new(&[0.5, 2.0]));
        packets.count(Segment::ToAgent, &Packet::Drain);
        packets.count(Segment::ToAgent, &Packet::Drain);
        packets.broke(Segment::FromAgent, Broke::Unavailable);
        histogram.observe(Duration::from_millis(100));
        histogram.observe(Duration::from_secs(1));
        histogram.observe(Duration::from_secs(9));
        let mut page = Page::default();
        packets.write(&mut page, AGENT);
        histogram.write(&mut page, "x_seconds", "Time");
        page.single("y", "gauge", "Things", 4);
        let expected = "\
# HELP konnectivity_network_proxy_agent_stream_packets_total Packets by segment and type
# TYPE konnectivity_network_proxy_agent_stream_packets_total counter
konnectivity_network_proxy_agent_stream_packets_total{segment=\"to_agent\",packet_type=\"DRAIN\"} 2
# HELP konnectivity_network_proxy_agent_stream_errors_total Streams that broke, by segment and gRPC code
# TYPE konnectivity_network_proxy_agent_stream_errors_total counter
konnectivity_network_proxy_agent_stream_errors_total{segment=\"from_agent\",code=\"Unavailable\",packet_type=\"Unknown\"} 1
# HELP x_seconds Time
# TYPE x_seconds histogram
x_seconds_bucket{le=\"0.5\"} 1
x_seconds_bucket{le=\"2\"} 2
x_seconds_bucket{le=\"+Inf\"} 3
x_seconds_sum 10.1
x_seconds_count 3
# HELP y Things
# TYPE y gauge
y 4
";
        assert_eq!(page.finish(), expected);
    }

    #[test]
    fn calls_are_told_apart_by_their_answer() {
        let calls = Calls::default();
        calls.observe(&Ok(()), Duration::from_millis(7));
        calls.observe(&Ok(()), Duration::from_millis(7));
        let late = Error::Late { asked: "list".to_owned(), seconds: 15 };
        calls.observe::<()>(&Err(late), Duration::from_secs(15));
        let mut page = Page::default();
        calls.write(&mut page, "t", "l", "code");
        let page = page.finish();
        for line in [
            "t{code=\"200\",reason=\"\"} 2",
            "t{code=\"0\",reason=\"\"} 1",
            "l_bucket{code=\"200\",le=\"0.01\"} 2",
            "l_count{code=\"0\"} 1",
        ] {
            assert!(page.lines().any(|found| found == line), "{line} is not in\n{page}");
        }
    }

    #[test]
    fn what_is_held_is_counted_until_it_is_dropped() {
        let gauge = Arc::new(Gauge::default());
        let held = (gauge.hold(), gauge.hold());
        assert_eq!(gauge.get(), 2);
        drop(held);
        assert_eq!(gauge.get(), 0);
    }
}
