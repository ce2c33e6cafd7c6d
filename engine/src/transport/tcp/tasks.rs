//! Tasks that somebody waits for at the end.

use tokio::runtime::Handle;
use tokio::sync::watch;

/// How many tasks run.
#[derive(Debug)]
pub(super) struct Tasks(watch::Sender<usize>);

impl Default for Tasks {
    fn default() -> Self {
        Self(watch::Sender::new(0))
    }
}

/// Counts a task for as long as it lives, however it ends.
struct Counted(watch::Sender<usize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

impl Tasks {
    pub(super) fn spawn(&self, runtime: &Handle, task: impl Future<Output = ()> + Send + 'static) {
        self.0.send_modify(|count| *count += 1);
        let counted = Counted(self.0.clone());
        runtime.spawn(async move {
            let _counted = counted;
            task.await;
        });
    }

    /// Resolves when none runs.
    pub(super) async fn wait(&self) {
        // The sender is a field of `self`, so it is not dropped.
        let _ = self.0.subscribe().wait_for(|count| *count == 0).await;
    }
}
