//! The terminal: looks and keys in, frames out, until the user has seen enough.

use super::board::Board;
use super::hands::Hands;
use super::keys::{Effect, paste, press};
use super::looks::{Looks, Watcher, host};
use super::screen::draw;
use super::style::Look;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, DisableBracketedPaste, EnableBracketedPaste, Event};
use ratatui::crossterm::execute;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, getpid, kill_process};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::error::Error;
use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The shortest and the longest time between two looks that keys choose.
const FASTEST: Duration = Duration::from_millis(100);
const SLOWEST: Duration = Duration::from_secs(10);

/// The longest time for which the screen stays as it is: answers to orders, signals and ages come meanwhile.
const LONGEST: Duration = Duration::from_millis(500);

/// The time in which a look usually comes, and the one after which it is looked for again.
const SOON: Duration = Duration::from_millis(20);
const LATER: Duration = Duration::from_millis(50);

/// The time for which the end waits for answers to orders.
const ANSWERS: Duration = Duration::from_secs(3);

/// A terminal that is as it was before at the end, however that comes.
struct Taken(DefaultTerminal);

impl Taken {
    fn take() -> Result<Self, String> {
        Ok(Self(taken()?))
    }

    /// Gives the terminal back, and stops until the user comes again.
    fn suspend(&mut self) -> Result<(), String> {
        give_back();
        // The shell sees it stopped; from here on it goes on.
        let _ = kill_process(getpid(), Signal::TSTP);
        self.0 = taken()?;
        Ok(())
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        give_back();
    }
}

fn taken() -> Result<DefaultTerminal, String> {
    let failed = |error: io::Error| {
        format!("the terminal cannot be used: {error}; allowed: one with cursor keys; try --plain, which writes lines")
    };
    let terminal = ratatui::try_init().map_err(failed)?;
    // Otherwise a text that is pasted would be keys.
    execute!(io::stdout(), EnableBracketedPaste).map_err(failed)?;
    Ok(terminal)
}

/// Returns true if the terminal was closed: crossterm would read its end again and again.
fn is_gone() -> bool {
    let stdin = io::stdin();
    let mut fds = [PollFd::new(&stdin, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    stdin.is_terminal() && poll(&mut fds, Some(&now)).is_ok() && fds[0].revents().contains(PollFlags::HUP)
        || rustix::termios::tcgetattr(io::stdout()).is_err()
}

fn give_back() {
    // Whoever has taken the terminal away has its say.
    let _ = execute!(io::stdout(), DisableBracketedPaste);
    ratatui::restore();
}

/// Shows the screen.
pub(super) fn run(looks: Looks, every: Duration, count: Option<u64>, look: Look) -> Result<(), Box<dyn Error>> {
    let is_told = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        let failed = |error| format!("signals cannot be waited for: {error}; try --plain, which does not");
        // The second one ends it wherever it is.
        signal_hook::flag::register_conditional_shutdown(signal, 1, Arc::clone(&is_told)).map_err(failed)?;
        signal_hook::flag::register(signal, Arc::clone(&is_told)).map_err(failed)?;
    }
    let hands = Looks::hands()?;
    let watcher = Watcher::new(looks);
    let watcher = watcher.map_err(|error| format!("no thread can be started: {error}; try a higher `ulimit -u`"))?;
    let mut session = Session { board: Board::new(host()), watcher, every, count, looks_so_far: 0 };
    let terminal = Taken::take()?;
    session.run(terminal, &hands, &is_told, look)?;
    // The terminal is as it was.
    let (answers, outstanding) = hands.finish(ANSWERS);
    for answer in answers {
        eprintln!("railweave: {}", crate::output::printable(&answer.text));
    }
    if outstanding > 0 {
        let reason = "orders have no answer yet, so nobody knows if they hold; try `railweave policy show`";
        return Err(format!("{outstanding} {reason}").into());
    }
    Ok(())
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
    fn run(
        &mut self,
        mut terminal: Taken,
        hands: &Hands,
        is_told: &AtomicBool,
        look: Look,
    ) -> Result<(), Box<dyn Error>> {
        let lost = |error: io::Error| format!("the terminal is lost: {error}; try another one");
        self.watcher.ask();
        let mut looked = Instant::now();
        while !is_told.load(Ordering::Relaxed) {
            if is_gone() {
                return Err("the terminal is gone; try another one".into());
            }
            if let Some(found) = self.watcher.wait(if self.watcher.is_asked { SOON } else { Duration::ZERO }) {
                self.looks_so_far += 1;
                if self.count.is_some_and(|count| self.looks_so_far > count) {
                    return Ok(());
                }
                if !self.board.is_paused {
                    self.board.take(found);
                }
            }
            self.board.take_answers(hands.answers(), hands.standing(&self.board.run_dirs));
            terminal.0.draw(|frame| draw(frame, &self.board, look)).map_err(lost)?;
            let longest = if self.watcher.is_asked { LATER } else { LONGEST };
            let mut wait = self.every.saturating_sub(looked.elapsed()).min(longest);
            // All keys that have come are taken before anything is drawn.
            while event::poll(wait).map_err(lost)? {
                wait = Duration::ZERO;
                let key = match event::read().map_err(lost)? {
                    Event::Key(key) => key,
                    Event::Paste(text) => {
                        paste(&mut self.board, &text);
                        continue;
                    }
                    _ => continue,
                };
                match press(&mut self.board, key) {
                    Effect::None => {}
                    Effect::Quit => return Ok(()),
                    Effect::Suspend => terminal.suspend()?,
                    Effect::Redraw => terminal.0.clear().map_err(lost)?,
                    Effect::Faster => self.every = (self.every / 2).max(FASTEST.min(self.every)),
                    Effect::Slower => self.every = (self.every * 2).min(SLOWEST.max(self.every)),
                    Effect::Order(order) => hands.give(order),
                }
            }
            if looked.elapsed() >= self.every {
                looked = Instant::now();
                self.watcher.ask();
            }
        }
        Ok(())
    }
}
