//! The hands: orders to whoever steers the jobs, given by a thread of their own, so that the screen never waits.

use crate::orders::effect;
use railweave_telemetry::Rules;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The time between two looks at what is ordered.
const EVERY: Duration = Duration::from_secs(1);

/// An order for the jobs of a run dir.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Order {
    pub(super) run_dir: PathBuf,
    pub(super) action: Action,
}

/// The content of an order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Keep data off a port.
    Drain(String),
    /// Use it again.
    GiveBack(String),
    /// Have this rule hold: matchers and actions.
    Set(String, String),
    /// Forget the rule with these matchers.
    Clear(String),
}

/// The orders that stand.
#[derive(Clone, Debug, Default)]
pub(super) struct Standing {
    /// The one who takes orders: the beginning of a line.
    pub(super) who: String,
    /// The ports that are to be empty.
    pub(super) drained: Vec<Drained>,
    /// Rules of the operator: matchers and actions.
    pub(super) rules: Vec<(String, String)>,
}

/// A port that is to be empty.
#[derive(Clone, Debug)]
pub(super) struct Drained {
    pub(super) port: String,
    /// The words for its progress; empty if that is not known.
    pub(super) phase: String,
    /// The reasons, with commas between.
    pub(super) reasons: String,
    /// True if it can be given back.
    pub(super) is_ordered: bool,
    /// The rule that drains it, and all ports for which it stands.
    rules: Option<Rules>,
}

/// The longest name that is shown: a folder's user may have made it up.
const LONGEST_NAME: usize = 64;

impl Drained {
    /// Returns a port that is drained for these reasons. With `is_file`, nobody but a policy file says so, and whatever
    /// it says can be taken back.
    pub(super) fn new(port: &str, phase: String, reasons: &[String], is_file: bool) -> Self {
        Self {
            port: port.chars().take(LONGEST_NAME).collect(),
            phase,
            reasons: reasons.join(", "),
            is_ordered: is_file || reasons.iter().any(|reason| reason == "operator"),
            rules: effect::drain(port),
        }
    }

    /// Returns true if a port of this name is drained with it.
    pub(super) fn covers(&self, port: &str) -> bool {
        self.rules.as_ref().is_some_and(|rules| effect::covers(rules, port))
    }
}

/// The result of an order: a sentence, and true if it was carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) text: String,
    pub(super) is_done: bool,
}

/// Whoever carries out orders.
pub(super) trait Steerer: Send {
    /// Carries out an order. Returns what was done.
    ///
    /// # Errors
    /// A sentence.
    fn order(&mut self, order: &Order) -> Result<String, String>;

    /// Returns the orders that stand for a run dir.
    ///
    /// # Errors
    /// A sentence.
    fn standing(&mut self, run_dir: &Path) -> Result<Standing, String>;
}

/// The orders that stand for each run dir; an error is a sentence.
pub(super) type AllStanding = BTreeMap<PathBuf, Result<Standing, String>>;

/// The most run dirs whose orders are looked at.
const MOST_RUN_DIRS: usize = 64;

#[derive(Default)]
struct Shared {
    run_dirs: Vec<PathBuf>,
    standing: AllStanding,
    answers: Vec<Answer>,
    /// Orders that have no answer yet.
    outstanding: usize,
}

/// The way to whoever carries out orders.
pub(super) struct Hands {
    orders: Sender<Order>,
    shared: Arc<Mutex<Shared>>,
}

impl Hands {
    /// Returns hands that give orders to `steerer`.
    ///
    /// # Errors
    /// If there is no room for a thread.
    pub(super) fn new(steerer: impl Steerer + 'static) -> std::io::Result<Self> {
        let (orders, received) = channel();
        let shared = Arc::new(Mutex::new(Shared::default()));
        let theirs = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("orders".to_owned());
        thread.spawn(move || work(steerer, &received, &theirs))?;
        Ok(Self { orders, shared })
    }

    /// Gives an order, whose answer comes later.
    pub(super) fn give(&self, order: Order) {
        locked(&self.shared).outstanding += 1;
        // It only fails if the thread has panicked, which has said so.
        let _ = self.orders.send(order);
    }

    /// Returns the orders that stand for these run dirs, as far as they are known yet.
    /// The first come first, and there is a bound.
    pub(super) fn standing(&self, run_dirs: Vec<PathBuf>) -> AllStanding {
        let mut shared = locked(&self.shared);
        shared.run_dirs = run_dirs;
        shared.standing.clone()
    }

    /// Waits for the answers to all orders, this time at most. Returns those that have come, and the number of those
    /// that have not.
    pub(super) fn finish(&self, longest: Duration) -> (Vec<Answer>, usize) {
        let begin = Instant::now();
        loop {
            let outstanding = locked(&self.shared).outstanding;
            if outstanding == 0 || begin.elapsed() >= longest {
                return (self.answers(), outstanding);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Returns the answers that have come.
    pub(super) fn answers(&self) -> Vec<Answer> {
        std::mem::take(&mut locked(&self.shared).answers)
    }
}

fn work(mut steerer: impl Steerer, orders: &Receiver<Order>, shared: &Mutex<Shared>) {
    loop {
        let run_dirs: Vec<_> = locked(shared).run_dirs.iter().take(MOST_RUN_DIRS).cloned().collect();
        locked(shared).standing.retain(|run_dir, _| run_dirs.contains(run_dir));
        for run_dir in run_dirs {
            // Whoever takes the orders of one folder may be slow; no order waits for those of all others.
            while let Ok(order) = orders.try_recv() {
                carry_out(&mut steerer, &order, shared);
            }
            let standing = steerer.standing(&run_dir);
            locked(shared).standing.insert(run_dir, standing);
        }
        match orders.recv_timeout(EVERY) {
            Ok(order) => carry_out(&mut steerer, &order, shared),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

fn carry_out(steerer: &mut impl Steerer, order: &Order, shared: &Mutex<Shared>) {
    let answer = match steerer.order(order) {
        Ok(text) => Answer { text, is_done: true },
        Err(text) => Answer { text, is_done: false },
    };
    let mut shared = locked(shared);
    shared.answers.push(answer);
    shared.outstanding = shared.outstanding.saturating_sub(1);
}

/// A thread that panicked has left the value as it was between two calls.
fn locked(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
