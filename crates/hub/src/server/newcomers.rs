//! Connections that have not asked anything yet. Anybody can open one and say nothing, so they have little time, and when there
//! is no place for another connection, they make room: the oldest one of the address that has most of them.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::task::AbortHandle;
use tokio::time::Instant;

/// How long a connection may take for its TLS handshake and the head of its first request together.
const PATIENCE: Duration = Duration::from_secs(10);
/// What everybody has before making room: else those who come all at once drive each other out, and nobody is served.
const GRACE: Duration = Duration::from_millis(500);
/// More than this of one address have no such time: the kernel's queue would be full of them meanwhile, and whoever does not fit
/// into it tries again after seconds.
const CROWD: usize = 256;

/// Set once something is asked on a connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct Asked(Arc<AtomicBool>);

/// By where they come from, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Newcomers(HashMap<IpAddr, VecDeque<Newcomer>>);

#[derive(Debug)]
struct Newcomer {
    since: Instant,
    asked: Asked,
    serving: AbortHandle,
}

/// Who has a network of IPv6 has all its addresses.
fn origin(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64)).into(),
        address @ IpAddr::V4(_) => address,
    }
}

// === impl Asked ===

impl Asked {
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

// === impl Newcomers ===

impl Newcomers {
    pub(super) fn add(&mut self, peer: IpAddr, asked: Asked, serving: AbortHandle) {
        let newcomer = Newcomer { since: Instant::now(), asked, serving };
        self.0.entry(origin(peer)).or_default().push_back(newcomer);
    }

    /// Sends those away that took too long.
    pub(super) fn tidy(&mut self) {
        self.0.retain(|_, here| {
            here.retain(|newcomer| {
                let is_late = newcomer.since.elapsed() >= PATIENCE;
                if newcomer.is_silent() && is_late {
                    newcomer.serving.abort();
                }
                newcomer.is_silent() && !is_late
            });
            !here.is_empty()
        });
    }

    /// Sends one away, if there is one that had its time.
    pub(super) fn make_room(&mut self) {
        while let Some((&origin, here)) = self.0.iter_mut().max_by_key(|(_, here)| here.len()) {
            let before = here.len();
            here.retain(Newcomer::is_silent);
            match here.front() {
                Some(first) if here.len() == before => {
                    if before > CROWD || first.since.elapsed() >= GRACE {
                        first.serving.abort();
                        here.pop_front();
                    }
                    return;
                }
                // Others may be more now.
                Some(_) => {}
                None => {
                    self.0.remove(&origin);
                }
            }
        }
    }
}

// === impl Newcomer ===

impl Newcomer {
    fn is_silent(&self) -> bool {
        !self.asked.0.load(Ordering::Relaxed) && !self.serving.is_finished()
    }
}

#[cfg(test)]
mod tests {
    use tokio::task::JoinHandle;

    use super::*;

    fn come(newcomers: &mut Newcomers, peer: &str) -> (Asked, JoinHandle<()>) {
        let (asked, serving) = (Asked::default(), tokio::spawn(std::future::pending()));
        newcomers.add(peer.parse().unwrap(), asked.clone(), serving.abort_handle());
        (asked, serving)
    }

    async fn are_here<const N: usize>(all: [&JoinHandle<()>; N]) -> [bool; N] {
        // What was sent away ends when it has its turn.
        tokio::task::yield_now().await;
        all.map(|serving| !serving.is_finished())
    }

    #[tokio::test(start_paused = true)]
    async fn who_asks_nothing_has_little_time() {
        let mut newcomers = Newcomers::default();
        let (_, silent) = come(&mut newcomers, "10.0.0.1");
        let (asked, asking) = come(&mut newcomers, "10.0.0.1");
        asked.set();
        tokio::time::advance(PATIENCE / 2).await;
        let (_, later) = come(&mut newcomers, "10.0.0.1");
        newcomers.tidy();
        assert_eq!(are_here([&silent, &asking, &later]).await, [true; 3]);
        tokio::time::advance(PATIENCE / 2).await;
        newcomers.tidy();
        assert_eq!(are_here([&silent, &asking, &later]).await, [false, true, true]);
        tokio::time::advance(PATIENCE).await;
        newcomers.tidy();
        assert_eq!(are_here([&asking, &later]).await, [true, false]);
        assert!(newcomers.0.is_empty(), "nothing is kept of those who went or asked");
    }

    #[tokio::test(start_paused = true)]
    async fn room_is_made_by_those_who_are_many() {
        let mut newcomers = Newcomers::default();
        let (_, alone) = come(&mut newcomers, "10.0.0.1");
        // Many, and all but one have asked something.
        let asking: Vec<_> = (0..9).map(|_| come(&mut newcomers, "10.0.0.2")).collect();
        let (_, gateway) = come(&mut newcomers, "10.0.0.2");
        for (asked, _) in &asking {
            asked.set();
        }
        let (_, first) = come(&mut newcomers, "2001:db8::1");
        let (_, second) = come(&mut newcomers, "2001:db8::2");
        newcomers.make_room();
        assert_eq!(are_here([&first, &second]).await, [true; 2], "everybody has a moment");
        tokio::time::advance(GRACE).await;
        newcomers.make_room();
        assert_eq!(are_here([&first, &second, &alone, &gateway]).await, [false, true, true, true]);
        for _ in 0..3 {
            newcomers.make_room();
        }
        assert_eq!(are_here([&second, &alone, &gateway]).await, [false; 3]);
        newcomers.make_room();
        assert!(asking.iter().all(|(_, serving)| !serving.is_finished()), "they are no newcomers any more");
    }

    #[tokio::test(start_paused = true)]
    async fn a_crowd_makes_room_at_once() {
        let mut newcomers = Newcomers::default();
        let (_, alone) = come(&mut newcomers, "10.0.0.1");
        let crowd: Vec<_> = (0..CROWD + 2).map(|_| come(&mut newcomers, "10.0.0.2")).collect();
        for _ in 0..4 {
            newcomers.make_room();
        }
        assert_eq!(are_here([&alone]).await, [true]);
        let gone = crowd.iter().take_while(|(_, serving)| serving.is_finished()).count();
        assert_eq!(gone, 2, "until it is none");
    }
}
