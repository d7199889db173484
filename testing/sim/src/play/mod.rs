//! NCCL's part: processes with their connections, their handshakes and sessions, and the applications on them.

mod aiming;
mod comm;
mod context;
mod control;
mod deaths;
mod devices;
mod failing;
mod freeing;
mod game;
mod habits;
mod injecting;
mod injection;
mod insisting;
mod listening;
mod memory;
mod net;
mod orders;
mod plan;
mod rail_work;
mod receiver;
mod recovery;
mod scenario;
mod sender;
mod sessions;
mod settling;
mod setup;
mod stage;
mod steering;
mod waiting;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::counts::Counts;
use crate::sabotage::{Plot, Sabotage};
use crate::{Checker, Violation};
use game::Game;
pub(crate) use injection::Injection;
pub(crate) use plan::Plan;
pub use plan::Workload;
pub(crate) use scenario::Variant;

/// The result of a game.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The finding of a checker, if there is one.
    pub violation: Option<Violation>,
    /// The counts of what was exercised.
    pub counts: Counts,
    /// A fingerprint of the history.
    pub hash: u64,
    /// The number of events in the history.
    pub events: u64,
    /// The time that the game took, in virtual nanoseconds.
    pub virtual_ns: u64,
    /// The history in words; empty if it was not asked for.
    pub history: Vec<String>,
    /// The number of events of the world.
    pub(crate) steps: u64,
    /// The number of calls by all applications.
    pub(crate) calls: u64,
    /// False if the planned fault found nothing to strike; the game ended there.
    pub(crate) has_struck: bool,
}

/// Plays one seed. If `history` is true, the outcome has the history in words.
pub fn run(seed: u64, workload: Workload, history: bool) -> Outcome {
    run_sabotaged(seed, workload, history, None)
}

/// Plays one seed as [`run`] does, with this sabotage; `None` for none.
pub fn run_sabotaged(seed: u64, workload: Workload, history: bool, sabotage: Option<Sabotage>) -> Outcome {
    run_plan(seed, Plan::new(seed, workload), history, sabotage)
}

/// Plays a plan; `seed` decides what the plan leaves open.
pub(crate) fn run_plan(seed: u64, plan: Plan, history: bool, sabotage: Option<Sabotage>) -> Outcome {
    let plot = Plot::new(sabotage);
    if plan.one_sided {
        play(Game::<true>::new(seed, plan, plot), history)
    } else {
        play(Game::<false>::new(seed, plan, plot), history)
    }
}

fn play<const ONE_SIDED: bool>(mut game: Game<ONE_SIDED>, history: bool) -> Outcome {
    let world = game.world();
    if history {
        world.lock().observer.history.lines = Some(vec![game.describe()]);
    }
    let panic = catch_unwind(AssertUnwindSafe(|| game.play())).err();
    if let Some(panic) = panic {
        let message = words_of(&*panic);
        let mut state = world.lock();
        let now_ns = state.now_ns;
        state.observer.watch.violate(now_ns, Checker::Panic, message);
    }
    let (steps, calls, has_struck) = (game.steps, game.calls, game.has_struck);
    // A game that panicked may be in any state, and may panic again when it is dropped. That must not end the whole
    // run.
    let _ = catch_unwind(AssertUnwindSafe(|| drop(game)));
    let mut state = world.lock();
    Outcome {
        violation: state.observer.watch.violation.clone(),
        counts: state.observer.counts.clone(),
        hash: state.observer.history.hash(),
        events: state.observer.history.events,
        virtual_ns: state.now_ns,
        history: state.observer.history.lines.take().unwrap_or_default(),
        steps,
        calls,
        has_struck,
    }
}

fn words_of(panic: &(dyn Any + Send)) -> String {
    let owned = panic.downcast_ref::<String>().cloned();
    let words = owned.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
    words.unwrap_or_else(|| "a panic without a message".to_owned())
}
