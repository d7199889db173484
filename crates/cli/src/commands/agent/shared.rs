//! The state that looks, the server and the script share.

use super::settings::Settings;
use railweave_agent::{Agent, Now};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::Notify;

/// The state that looks, the server and the script share.
pub(super) struct Shared {
    agent: Mutex<Agent>,
    token: Mutex<Option<String>>,
    begin: Instant,
    /// The time of the end of the last look.
    looked: Mutex<Option<Instant>>,
    every: Mutex<Duration>,
    reload: Notify,
    /// Something was ordered that the next look carries out.
    change: Notify,
    /// A look has ended.
    pub(super) look: Notify,
}

impl Shared {
    pub(super) fn new(settings: &Settings) -> Self {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let version = env!("CARGO_PKG_VERSION");
        Self {
            agent: Mutex::new(Agent::new(settings.config.clone(), version, host.trim(), std::process::id())),
            token: Mutex::new(settings.token.clone()),
            begin: Instant::now(),
            looked: Mutex::new(None),
            every: Mutex::new(Duration::from_millis(settings.config.every_ms)),
            reload: Notify::new(),
            change: Notify::new(),
            look: Notify::new(),
        }
    }

    /// Returns the agent. Nobody keeps it while waiting for anything.
    pub(super) fn agent(&self) -> MutexGuard<'_, Agent> {
        locked(&self.agent)
    }

    pub(super) fn token(&self) -> Option<String> {
        locked(&self.token).clone()
    }

    /// Takes up other settings.
    pub(super) fn set_settings(&self, settings: &Settings) {
        self.agent().set_config(settings.config.clone());
        locked(&self.token).clone_from(&settings.token);
        *locked(&self.every) = Duration::from_millis(settings.config.every_ms);
    }

    pub(super) fn now(&self) -> Now {
        let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Now { clock, up: self.begin.elapsed() }
    }

    /// Notes that a look has ended.
    pub(super) fn looked(&self) {
        *locked(&self.looked) = Some(Instant::now());
        self.look.notify_one();
    }

    /// Returns the time since the last look, and the longest that it should be; `None` before the first.
    pub(super) fn look_age(&self) -> Option<(Duration, Duration)> {
        let age = locked(&self.looked).map(|looked| looked.elapsed())?;
        Some((age, *locked(&self.every) * 3 + Duration::from_secs(5)))
    }

    /// Returns the time since the agent began.
    pub(super) fn age(&self) -> Duration {
        self.begin.elapsed()
    }

    /// Has the configuration read again.
    pub(super) fn reload(&self) {
        self.reload.notify_one();
    }

    /// Waits until the configuration is to be read again.
    pub(super) async fn reloads(&self) {
        self.reload.notified().await;
    }

    /// Has the next look come at once.
    pub(super) fn change(&self) {
        self.change.notify_one();
    }

    /// Waits until something was ordered.
    pub(super) async fn waits_for_change(&self) {
        self.change.notified().await;
    }
}

/// A thread that panicked has left the value as it was between two calls: each call of the agent is complete in itself.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
