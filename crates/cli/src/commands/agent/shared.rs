//! The state that looks, the server and the script share.

use super::settings::Settings;
use axum::body::Bytes;
use railweave_agent::{Agent, Inherited, Now, State};
use railweave_telemetry::HistoryEntry;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::{Notify, watch};

/// The most texts of a path at a time. Each may have tens of megabytes, and readers may take a minute for theirs.
const MOST_TEXTS: usize = 4;

/// The most entries of the history that wait for a look.
const MOST_ENTRIES: usize = 4096;

/// The texts of a path.
#[derive(Default)]
struct Texts {
    /// The text since the last look or order, once somebody has asked for it.
    present: Option<Bytes>,
    /// True if there was a look or an order since.
    is_old: bool,
    /// The texts that readers may still have.
    given: Vec<Weak<String>>,
}

impl Texts {
    /// Returns the text since the last look or order, which `make` makes. While readers have many, it is the last one.
    fn get(&mut self, make: impl FnOnce() -> String) -> Bytes {
        self.given.retain(|text| text.strong_count() > 0);
        if let Some(text) = self.present.as_ref().filter(|_| !self.is_old || self.given.len() >= MOST_TEXTS) {
            return text.clone();
        }
        let text = Arc::new(make());
        self.given.push(Arc::downgrade(&text));
        self.is_old = false;
        self.present.insert(Bytes::from_owner(Text(text))).clone()
    }

    /// Has the text made again when somebody asks for it.
    fn forget(&mut self) {
        self.is_old = true;
        // It is not needed any more, unless it is the last one that there is room for.
        if self.given.len() < MOST_TEXTS {
            self.present = None;
        }
    }
}

/// A text that many readers share.
struct Text(Arc<String>);

impl AsRef<[u8]> for Text {
    fn as_ref(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

/// The state that looks, the server and the script share.
pub(super) struct Shared {
    agent: Mutex<Agent>,
    token: Mutex<Option<String>>,
    metrics: Mutex<Texts>,
    /// The JSON of parts of the state, by their names.
    parts: Mutex<BTreeMap<&'static str, Texts>>,
    /// The state since the last look or order, once somebody has asked for it.
    state: Mutex<Option<Arc<State>>>,
    begin: Instant,
    /// The number of looks that have begun, and of the last one that has ended.
    begun: AtomicU64,
    ended: watch::Sender<u64>,
    /// True once the last look begins.
    is_ending: AtomicBool,
    /// The time of the end of the last look.
    looked: Mutex<Option<Instant>>,
    every: Mutex<Duration>,
    reload: Notify,
    /// Something was ordered that the next look carries out.
    change: Notify,
    /// A look has ended.
    pub(super) look: Notify,
    /// The entries of the history that no look has written yet.
    history: Mutex<Vec<HistoryEntry>>,
}

impl Shared {
    pub(super) fn new(settings: &Settings) -> Self {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let version = env!("CARGO_PKG_VERSION");
        Self {
            agent: Mutex::new(Agent::new(settings.config.clone(), version, host.trim(), std::process::id())),
            token: Mutex::new(settings.token.clone()),
            metrics: Mutex::default(),
            parts: Mutex::default(),
            state: Mutex::new(None),
            begin: Instant::now(),
            begun: AtomicU64::new(0),
            ended: watch::Sender::new(0),
            is_ending: AtomicBool::new(false),
            looked: Mutex::new(None),
            every: Mutex::new(Duration::from_millis(settings.config.every_ms)),
            reload: Notify::new(),
            change: Notify::new(),
            look: Notify::new(),
            history: Mutex::default(),
        }
    }

    /// Returns the agent. Nobody keeps it while waiting for anything.
    pub(super) fn agent(&self) -> MutexGuard<'_, Agent> {
        locked(&self.agent)
    }

    pub(super) fn token(&self) -> Option<String> {
        locked(&self.token).clone()
    }

    /// Returns the text of the metrics. All who ask between two looks share one: it may be large, and they slow.
    pub(super) fn metrics(&self) -> Bytes {
        // Nobody who has the agent waits for this text.
        locked(&self.metrics).get(|| self.agent().metrics())
    }

    /// Returns the JSON of a part of the state, or of all of it, which is shared in the same way.
    pub(super) fn json<T: Serialize>(&self, name: &'static str, part: impl FnOnce(&State) -> &T) -> Bytes {
        let mut parts = locked(&self.parts);
        parts.entry(name).or_default().get(|| serde_json::to_string(part(&self.state())).unwrap_or_default())
    }

    /// Returns the state. All who ask between two looks share it too.
    pub(super) fn state(&self) -> Arc<State> {
        let mut state = locked(&self.state);
        Arc::clone(state.get_or_insert_with(|| Arc::new(self.agent().state())))
    }

    /// Has metrics and state made again when somebody asks for them.
    fn forget(&self) {
        locked(&self.metrics).forget();
        locked(&self.parts).values_mut().for_each(Texts::forget);
        *locked(&self.state) = None;
    }

    /// Notes an order for the history, which the next look writes: a file system may hang, and nobody waits for it.
    pub(super) fn note(&self, who: &str, order: String) {
        let at = self.now().clock;
        let mut history = locked(&self.history);
        // While a look hangs, the first orders say the most.
        if history.len() < MOST_ENTRIES {
            history.push(HistoryEntry { at, who: who.to_owned(), order });
        }
    }

    /// Returns the entries of the history since the last call.
    pub(super) fn take_history(&self) -> Vec<HistoryEntry> {
        std::mem::take(&mut *locked(&self.history))
    }

    /// Takes over the orders of an agent before this one. Returns the sentences to log.
    pub(super) fn inherit(&self, before: &Inherited) -> Vec<String> {
        let lines = {
            let mut agent = self.agent();
            // Not before orders that came meanwhile.
            agent.inherit(before, self.now())
        };
        self.forget();
        lines
    }

    /// Takes up other settings.
    pub(super) fn set_settings(&self, settings: &Settings) {
        self.agent().set_config(settings.config.clone());
        self.forget();
        locked(&self.token).clone_from(&settings.token);
        *locked(&self.every) = Duration::from_millis(settings.config.every_ms);
    }

    pub(super) fn now(&self) -> Now {
        let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Now { clock, up: self.begin.elapsed() }
    }

    /// Notes that a look begins.
    pub(super) fn look_begins(&self) {
        self.begun.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that the next look is the last one.
    pub(super) fn end(&self) {
        self.is_ending.store(true, Ordering::Relaxed);
    }

    /// Returns true once the last look begins.
    pub(super) fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Relaxed)
    }

    /// Notes that the look has ended.
    pub(super) fn looked(&self) {
        self.forget();
        *locked(&self.looked) = Some(Instant::now());
        self.ended.send_replace(self.begun.load(Ordering::Relaxed));
        self.look.notify_one();
    }

    /// Waits until a look has ended that begins from now on, this time at most. Returns false if none has.
    pub(super) async fn next_look(&self, longest: Duration) -> bool {
        let next = self.begun.load(Ordering::Relaxed) + 1;
        let mut ended = self.ended.subscribe();
        tokio::time::timeout(longest, ended.wait_for(|ended| *ended >= next)).await.is_ok_and(|ended| ended.is_ok())
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
        self.forget();
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

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::commands::agent::Arguments;

    fn settings() -> Settings {
        let (run_dir, root) = (vec!["/nowhere".into()], "/".into());
        let arguments = Arguments { config: None, listen: None, run_dir, token_file: None, root, check: false };
        Settings::read(&arguments).unwrap()
    }

    pub(in crate::commands::agent) fn shared() -> Shared {
        Shared::new(&settings())
    }

    /// Returns the state of an agent that began some time ago and, if so, looked some time ago.
    pub(in crate::commands::agent) fn aged(every_ms: u64, began: Duration, looked: Option<Duration>) -> Arc<Shared> {
        let (mut shared, mut settings) = (shared(), settings());
        settings.config.every_ms = every_ms;
        shared.set_settings(&settings);
        shared.begin = Instant::now().checked_sub(began).unwrap();
        *locked(&shared.looked) = looked.map(|age| Instant::now().checked_sub(age).unwrap());
        Arc::new(shared)
    }

    #[test]
    fn readers_that_take_long_have_few_texts() {
        let shared = shared();
        let mut texts: Vec<Bytes> = (0..MOST_TEXTS).map(|_| shared.metrics()).inspect(|_| shared.looked()).collect();
        let mut places: Vec<_> = texts.iter().map(|text| text.as_ptr()).collect();
        places.sort_unstable();
        places.dedup();
        assert_eq!(places.len(), MOST_TEXTS);
        let last = texts[MOST_TEXTS - 1].as_ptr();
        assert_eq!(shared.metrics().as_ptr(), last);
        texts.remove(0);
        assert_ne!(shared.metrics().as_ptr(), last, "there is room again");
    }

    #[tokio::test]
    async fn the_next_look_is_one_that_begins_later() {
        let shared = shared();
        shared.look_begins();
        let mut next = std::pin::pin!(shared.next_look(Duration::from_secs(60)));
        assert!(is_pending(&mut next).await, "one runs");
        shared.looked();
        assert!(is_pending(&mut next).await, "it has begun before");
        shared.look_begins();
        assert!(is_pending(&mut next).await);
        shared.looked();
        assert!(next.await);
        assert!(!shared.next_look(Duration::ZERO).await);
    }

    /// Returns true if the future has no value yet.
    async fn is_pending(future: &mut (impl Future + Unpin)) -> bool {
        tokio::select! {
            biased;
            _ = future => false,
            () = std::future::ready(()) => true,
        }
    }

    #[test]
    fn all_readers_of_metrics_between_two_looks_share_one_text() {
        let shared = shared();
        let first = shared.metrics();
        assert!(first.ends_with(b"# EOF\n"));
        assert_eq!(shared.metrics().as_ptr(), first.as_ptr());
        let mut last = first;
        for change in [Shared::looked, Shared::change] {
            change(&shared);
            let next = shared.metrics();
            assert_ne!(next.as_ptr(), last.as_ptr(), "the last one is still there");
            last = next;
        }
    }
}
