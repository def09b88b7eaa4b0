//! Counters under upstream's names, so that existing dashboards and alerts keep working.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use landfall_cluster::Error;
use landfall_net::metrics::{Counter, Histogram, MetricType, MetricsText};

use crate::packet::Packet;

pub(crate) const SERVER: &str = "konnectivity_network_proxy_server_";
pub(crate) const AGENT: &str = "konnectivity_network_proxy_agent_";

pub(crate) const SERVER_DIAL_BUCKETS: &[f64] =
    &[0.000_001, 0.000_01, 0.000_1, 0.005, 0.025, 0.1, 0.5, 2.5, 12.5];
pub(crate) const AGENT_DIAL_BUCKETS: &[f64] = &[0.005, 0.025, 0.1, 0.5, 2.5, 10.0, 30.0];
pub(crate) const CONNECTION_BUCKETS: &[f64] =
    &[1.0, 5.0, 15.0, 30.0, 60.0, 300.0, 900.0, 1800.0, 3600.0, 14_400.0, 43_200.0, 86_400.0];

/// Calls to the API server take from milliseconds up to their timeout.
const CALL_BUCKETS: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
/// Maximum number of distinct responses to count; usually there are a handful.
const MAX_ANSWERS: usize = 64;

const KINDS: [&str; 9] =
    ["DIAL_REQ", "DIAL_RSP", "CLOSE_REQ", "CLOSE_RSP", "DATA", "DIAL_CLS", "DRAIN", "CREDIT", "UNKNOWN"];
const CODES: [&str; 3] = ["Canceled", "Internal", "Unavailable"];
const SEGMENTS: [&str; 4] = ["from_client", "to_client", "from_agent", "to_agent"];

/// The segment on which a packet was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Segment {
    FromClient = 0,
    ToClient = 1,
    FromAgent = 2,
    ToAgent = 3,
}

/// The gRPC name of a stream failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Broke {
    Canceled = 0,
    Internal = 1,
    Unavailable = 2,
}

/// Packets by segment and kind, and failed streams.
#[derive(Debug, Default)]
pub(crate) struct Packets {
    counts: [[AtomicU64; KINDS.len()]; SEGMENTS.len()],
    errors: [[AtomicU64; CODES.len()]; SEGMENTS.len()],
}

/// Calls to the API server, by response.
#[derive(Debug, Default)]
pub(crate) struct Calls(Mutex<Answers>);

#[derive(Debug, Default)]
struct Answers {
    counts: BTreeMap<(u16, String), u64>,
    times: BTreeMap<u16, Histogram>,
}

#[derive(Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) sent: AtomicU64,
    pub(crate) received: AtomicU64,
    /// Tunnels that waited for a slow reader at the last check.
    pub(crate) stalled: AtomicUsize,
    /// Tunnels closed because their reader was too slow.
    pub(crate) broken_off: Counter,
}

// === impl Packets ===

impl Packets {
    /// Increments every counter, so that a page shows all label values.
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

    pub(crate) fn write(&self, text: &mut MetricsText) {
        let counted = |count: &AtomicU64| Some(count.load(Ordering::Relaxed)).filter(|count| *count > 0);
        let mut family = text.family(
            "stream_packets_total",
            MetricType::Counter,
            "Total number of packets, by segment and type.",
        );
        for (segment, counts) in SEGMENTS.iter().zip(&self.counts) {
            for (kind, count) in KINDS.iter().zip(counts) {
                if let Some(count) = counted(count) {
                    family.value(&[("segment", segment), ("packet_type", kind)], count);
                }
            }
        }
        let mut family = text.family(
            "stream_errors_total",
            MetricType::Counter,
            "Total number of failed streams, by segment and gRPC code.",
        );
        for (segment, counts) in SEGMENTS.iter().zip(&self.errors) {
            for (code, count) in CODES.iter().zip(counts) {
                if let Some(count) = counted(count) {
                    family.value(&[("segment", segment), ("code", code), ("packet_type", "Unknown")], count);
                }
            }
        }
    }
}

// === impl Calls ===

impl Calls {
    pub(crate) fn observe<T>(&self, answer: &Result<T, Error>, took: Duration) {
        // Without a response there is no status.
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

    /// Writes the metrics. `status` is the name of the label for the HTTP status on this side.
    pub(crate) fn write(&self, text: &mut MetricsText, total: &str, latency: &str, status: &str) {
        let answers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let help = "Total number of requests to the API server, by response.";
        let mut family = text.family(total, MetricType::Counter, help);
        for ((code, reason), count) in &answers.counts {
            family.value(&[(status, &code.to_string()), ("reason", reason)], count);
        }
        let mut family =
            text.family(latency, MetricType::Histogram, "Time to the response of the API server.");
        for (code, times) in &answers.times {
            family.histogram(&[(status, &code.to_string())], times);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_counted_by_segment_and_type() {
        let packets = Packets::default();
        packets.count(Segment::ToAgent, &Packet::Drain);
        packets.count(Segment::ToAgent, &Packet::Drain);
        packets.broke(Segment::FromAgent, Broke::Unavailable);
        let mut text = MetricsText::new(AGENT);
        packets.write(&mut text);
        let expected = "\
# HELP konnectivity_network_proxy_agent_stream_packets_total Total number of packets, by segment and type.
# TYPE konnectivity_network_proxy_agent_stream_packets_total counter
konnectivity_network_proxy_agent_stream_packets_total{segment=\"to_agent\",packet_type=\"DRAIN\"} 2
# HELP konnectivity_network_proxy_agent_stream_errors_total Total number of failed streams, by segment and gRPC code.
# TYPE konnectivity_network_proxy_agent_stream_errors_total counter
konnectivity_network_proxy_agent_stream_errors_total{segment=\"from_agent\",code=\"Unavailable\",packet_type=\"Unknown\"} 1
";
        assert_eq!(text.finish(), expected);
    }

    #[test]
    fn calls_are_told_apart_by_their_answer() {
        let calls = Calls::default();
        calls.observe(&Ok(()), Duration::from_millis(7));
        calls.observe(&Ok(()), Duration::from_millis(7));
        let late = Error::Late { asked: "list".to_owned(), seconds: 15 };
        calls.observe::<()>(&Err(late), Duration::from_secs(15));
        let mut text = MetricsText::default();
        calls.write(&mut text, "t", "l", "code");
        let page = text.finish();
        for line in [
            "t{code=\"200\",reason=\"\"} 2",
            "t{code=\"0\",reason=\"\"} 1",
            "l_bucket{code=\"200\",le=\"0.01\"} 2",
            "l_count{code=\"0\"} 1",
        ] {
            assert!(page.lines().any(|found| found == line), "{line} is not in\n{page}");
        }
    }
}
