use std::time::Duration;

use tokio::runtime::Handle;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tokio_util::task::TaskTracker;

/// A group of tasks with graceful shutdown: tasks are notified, get time to finish, and are then aborted.
#[derive(Clone, Debug, Default)]
pub struct Drain {
    asked: CancellationToken,
    over: CancellationToken,
    tasks: TaskTracker,
}

// === impl Drain ===

impl Drain {
    /// Runs a task until it ends or the shutdown timeout expires.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.spawn_on(&Handle::current(), task);
    }

    /// Runs a task on another runtime.
    pub fn spawn_on(&self, runtime: &Handle, task: impl Future<Output = ()> + Send + 'static) {
        let over = self.over.clone().cancelled_owned();
        self.tasks.spawn_on(
            async move {
                tokio::select! {
                    () = task => {}
                    () = over => {}
                }
            },
            runtime,
        );
    }

    /// Resolves on shutdown: tasks should finish their work and start nothing new.
    pub fn asked(&self) -> WaitForCancellationFutureOwned {
        self.asked.clone().cancelled_owned()
    }

    pub fn is_asked(&self) -> bool {
        self.asked.is_cancelled()
    }

    /// Notifies all tasks of the shutdown.
    pub fn ask(&self) {
        self.asked.cancel();
    }

    pub fn tasks(&self) -> usize {
        self.tasks.len()
    }

    /// Notifies all tasks, waits for them up to `within`, aborts the remaining ones, and returns their number.
    pub async fn finish(&self, within: Duration) -> usize {
        self.ask();
        self.tasks.close();
        let left = match tokio::time::timeout(within, self.tasks.wait()).await {
            Ok(()) => 0,
            Err(_) => self.tasks.len(),
        };
        self.over.cancel();
        self.tasks.wait().await;
        left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_finishes_is_waited_for_and_who_does_not_is_ended() {
        let drain = Drain::default();
        let asked = drain.asked();
        drain.spawn(asked);
        drain.spawn(std::future::pending());
        assert_eq!(drain.tasks(), 2);
        assert_eq!(drain.finish(Duration::from_millis(50)).await, 1);
        assert_eq!(drain.tasks(), 0);
    }
}
