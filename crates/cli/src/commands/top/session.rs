//! The loop: looks and keys in, frames out, until the user has seen enough.

use super::board::Board;
use super::hands::Hands;
use super::input::Input;
use super::keys::{Effect, paste, press};
use super::looks::{Looks, Watcher, host};
use super::style::Look;
use super::terminal::{Screen, Signals};
use std::error::Error;
use std::io::{self, Write};
use std::time::{Duration, Instant};
use termina::Event;

/// The shortest and the longest time between two looks that keys choose.
const FASTEST: Duration = Duration::from_millis(100);
const SLOWEST: Duration = Duration::from_secs(10);

/// The longest time for which the screen stays as it is: answers to orders, signals and ages come meanwhile.
const LONGEST: Duration = Duration::from_millis(500);

/// The time in which a look usually comes, and the one after which it is looked for again.
const SOON: Duration = Duration::from_millis(20);
const LATER: Duration = Duration::from_millis(50);

/// The time for which the end waits for answers to orders.
const ANSWERS: Duration = Duration::from_secs(10);

/// Shows the screen.
pub(super) fn run(looks: Looks, every: Duration, count: Option<u64>, look: Look) -> Result<(), Box<dyn Error>> {
    let signals = Signals::note();
    let signals =
        signals.map_err(|error| format!("signals cannot be waited for: {error}; try --plain, which does not"))?;
    let hands = Looks::hands()?;
    let watcher = Watcher::new(looks);
    let watcher = watcher.map_err(|error| format!("no thread can be started: {error}; try a higher `ulimit -u`"))?;
    let mut session = Session { board: Board::new(host()), watcher, every, count, looks_so_far: 0 };
    let screen = Screen::take(signals.clone()).map_err(|error| {
        format!("the terminal cannot be used: {error}; allowed: one with cursor keys; try --plain, which writes lines")
    })?;
    let result = session.run(screen, &hands, &signals, look);
    // The terminal is as it was. If a second signal cannot end it, it ends a little later.
    let _ = signals.end_at_the_second();
    let (answers, outstanding) = hands.finish(ANSWERS);
    for answer in answers {
        let _ = writeln!(io::stderr(), "railweave: {}", crate::output::printable(&answer.text));
    }
    if outstanding > 0 {
        let reason = "orders have no answer yet, so nobody knows if they hold; try `railweave policy show`";
        return Err(format!("{outstanding} {reason}").into());
    }
    result
}

/// The screen while it is shown.
struct Session {
    board: Board,
    watcher: Watcher,
    every: Duration,
    count: Option<u64>,
    looks_so_far: u64,
}

impl Session {
    fn run(&mut self, mut screen: Screen, hands: &Hands, signals: &Signals, look: Look) -> Result<(), Box<dyn Error>> {
        let lost = |error: io::Error| format!("the terminal is lost: {error}; try another one");
        let mut input = Input::new().map_err(lost)?;
        self.watcher.ask();
        let mut looked = Instant::now();
        while !signals.is_told() {
            if let Some(found) = self.watcher.wait(SOON)? {
                self.looks_so_far += 1;
                if self.count.is_some_and(|count| self.looks_so_far > count) {
                    return Ok(());
                }
                self.board.take(found);
            }
            self.board.take_answers(hands.answers(), hands.standing(self.board.run_dirs_by_use()));
            screen.draw(&self.board, look).map_err(lost)?;
            let longest = if self.watcher.is_asked { LATER } else { LONGEST };
            // In a pause, no look is due.
            let due = if self.board.is_paused { longest } else { self.every.saturating_sub(looked.elapsed()) };
            let wait = due.min(longest);
            input.wait(wait).map_err(lost)?;
            // All keys that have come are taken before anything is drawn.
            while let Some(event) = input.next() {
                let effect = match event {
                    Event::Key(key) => press(&mut self.board, key),
                    Event::Paste(text) => {
                        paste(&mut self.board, &text);
                        Effect::None
                    }
                    _ => Effect::None,
                };
                match effect {
                    Effect::None => {}
                    Effect::Quit => return Ok(()),
                    Effect::Suspend => screen.suspend(),
                    Effect::Redraw => screen.forget(),
                    Effect::Faster => self.every = faster(self.every),
                    Effect::Slower => self.every = slower(self.every),
                    Effect::Order(order) => hands.give(order),
                }
            }
            // Whatever happens in a pause is found after it.
            if looked.elapsed() >= self.every && !self.board.is_paused {
                looked = Instant::now();
                self.watcher.ask();
            }
        }
        Ok(())
    }
}

/// Returns the time between two looks that a key makes of another one: one that the command line chose may be shorter
/// or longer than those of keys.
fn faster(every: Duration) -> Duration {
    (every / 2).max(FASTEST.min(every))
}

fn slower(every: Duration) -> Duration {
    (every * 2).min(SLOWEST.max(every))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_make_looks_more_or_less_frequent_within_bounds() {
        let ms = Duration::from_millis;
        assert_eq!([500, 150, 100, 20].map(|every| faster(ms(every))), [250, 100, 100, 20].map(ms));
        assert_eq!(
            [500, 6_000, 10_000, 60_000].map(|every| slower(ms(every))),
            [1_000, 10_000, 10_000, 60_000].map(ms)
        );
    }
}
