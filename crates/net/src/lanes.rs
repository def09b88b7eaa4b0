//! Threads that each serve their own connections. All work for a connection stays on one thread, because moving it
//! between cores costs more than most requests.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::runtime::{Builder, Handle};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::Drain;

/// A set of threads that run until this is dropped.
#[derive(Debug)]
pub struct Lanes {
    lanes: Vec<Lane>,
    /// Stops the threads when dropped.
    _over: DropGuard,
}

#[derive(Debug)]
struct Lane {
    handle: Handle,
    tasks: Arc<AtomicUsize>,
}

/// Counts a task until it ends.
struct Counted(Arc<AtomicUsize>);

// === impl Lanes ===

impl Lanes {
    /// Starts `count` threads, at least one.
    pub fn start(count: usize) -> io::Result<Self> {
        let over = CancellationToken::new();
        // If a later thread cannot be started, dropping the guard stops the earlier ones.
        let guard = over.clone().drop_guard();
        let lanes = (0..count.max(1)).map(|number| Lane::start(number, over.clone()));
        Ok(Self { lanes: lanes.collect::<Result<_, _>>()?, _over: guard })
    }

    pub fn count(&self) -> usize {
        self.lanes.len()
    }

    /// Runs a task on every thread.
    pub fn on_each<T>(&self, drain: &Drain, task: impl Fn(usize) -> T)
    where
        T: Future<Output = ()> + Send + 'static,
    {
        for (number, lane) in self.lanes.iter().enumerate() {
            drain.spawn_on(&lane.handle, task(number));
        }
    }

    /// Returns the thread with the fewest tasks; `here` wins a tie.
    pub fn least(&self, here: usize) -> usize {
        let tasks = |number: &usize| self.lanes.get(*number).map_or(usize::MAX, Lane::tasks);
        let least = (0..self.lanes.len()).min_by_key(tasks).unwrap_or(here);
        if tasks(&here) <= tasks(&least) { here } else { least }
    }

    /// Runs a task on one of the threads.
    pub fn spawn(&self, drain: &Drain, number: usize, task: impl Future<Output = ()> + Send + 'static) {
        let Some(lane) = self.lanes.get(number) else { return };
        let counted = Counted::new(&lane.tasks);
        drain.spawn_on(&lane.handle, async move {
            let _counted = counted;
            task.await;
        });
    }
}

// === impl Lane ===

impl Lane {
    fn start(number: usize, over: CancellationToken) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        std::thread::Builder::new()
            .name(format!("lane-{number}"))
            .spawn(move || runtime.block_on(over.cancelled()))?;
        Ok(Self { handle, tasks: Arc::default() })
    }

    fn tasks(&self) -> usize {
        self.tasks.load(Ordering::Relaxed)
    }
}

// === impl Counted ===

impl Counted {
    fn new(tasks: &Arc<AtomicUsize>) -> Self {
        tasks.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(tasks))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn tasks_are_spread_and_stay_where_they_are() {
        let (lanes, drain) = (Lanes::start(3).unwrap(), Drain::default());
        let (sender, mut told) = mpsc::unbounded_channel();
        for _ in 0..6 {
            let (sender, asked, number) = (sender.clone(), drain.asked(), lanes.least(0));
            lanes.spawn(&drain, number, async move {
                let before = std::thread::current().id();
                tokio::spawn(async {}).await.unwrap();
                sender.send((number, before == std::thread::current().id())).unwrap();
                asked.await;
            });
        }
        assert_eq!(lanes.least(1), 1, "who asks is as good as anybody");
        drop(sender);
        let mut numbers = Vec::new();
        for _ in 0..6 {
            let (number, stayed) = told.recv().await.unwrap();
            assert!(stayed);
            numbers.push(number);
        }
        numbers.sort_unstable();
        assert_eq!(numbers, [0, 0, 1, 1, 2, 2]);
        let (sender, mut told) = mpsc::unbounded_channel();
        lanes.on_each(&drain, |number| {
            let sender = sender.clone();
            async move { sender.send(number).unwrap() }
        });
        let mut each = [told.recv().await.unwrap(), told.recv().await.unwrap(), told.recv().await.unwrap()];
        each.sort_unstable();
        assert_eq!(each, [0, 1, 2]);
        assert_eq!(drain.finish(Duration::from_secs(60)).await, 0);
        // Ended tasks are no longer counted.
        assert!(lanes.lanes.iter().all(|lane| lane.tasks.load(Ordering::Relaxed) == 0));
    }
}
