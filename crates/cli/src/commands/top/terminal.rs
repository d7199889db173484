//! The terminal: looks and keys in, frames out, until the user has seen enough.

use super::board::Board;
use super::hands::Hands;
use super::keys::{Effect, press};
use super::looks::{Looks, host};
use super::screen::draw;
use super::style::Look;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};
use rustix::process::{Signal, getpid, kill_process};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::error::Error;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The shortest and the longest time between two looks that keys choose.
const FASTEST: Duration = Duration::from_millis(100);
const SLOWEST: Duration = Duration::from_secs(10);

/// A terminal that is as it was before at the end, however that comes.
struct Taken(DefaultTerminal);

impl Taken {
    fn take() -> Result<Self, String> {
        let failed = |error: io::Error| {
            format!("the terminal cannot be used: {error}; try another one, or --plain, which writes lines")
        };
        ratatui::try_init().map(Self).map_err(failed)
    }

    /// Gives the terminal back, and stops until the user comes again.
    fn suspend(&mut self) -> Result<(), String> {
        ratatui::restore();
        // The shell sees it stopped; from here on it goes on.
        let _ = kill_process(getpid(), Signal::TSTP);
        *self = Self::take()?;
        Ok(())
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Shows the screen.
pub(super) fn run(mut looks: Looks, every: Duration, count: Option<u64>, look: Look) -> Result<(), Box<dyn Error>> {
    let is_told = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        signal_hook::flag::register(signal, Arc::clone(&is_told))
            .map_err(|error| format!("signals cannot be waited for: {error}"))?;
    }
    let hands = Looks::hands()?;
    let mut board = Board::new(host());
    let mut terminal = Taken::take()?;
    let lost = |error: io::Error| format!("the terminal is lost: {error}");
    let (mut every, mut looked, mut looks_so_far) = (every, Instant::now(), 0);
    refresh(&mut board, &mut looks, &hands);
    while !is_told.load(Ordering::Relaxed) {
        terminal.0.draw(|frame| draw(frame, &board, look)).map_err(lost)?;
        let mut wait = every.saturating_sub(looked.elapsed());
        // All keys that have come are taken before anything is drawn.
        while event::poll(wait).map_err(lost)? {
            wait = Duration::ZERO;
            let Event::Key(key) = event::read().map_err(lost)? else { continue };
            match press(&mut board, key) {
                Effect::None => {}
                Effect::Quit => return Ok(()),
                Effect::Suspend => terminal.suspend()?,
                Effect::Redraw => terminal.0.clear().map_err(lost)?,
                Effect::Faster => every = (every / 2).max(FASTEST.min(every)),
                Effect::Slower => every = (every * 2).min(SLOWEST.max(every)),
                Effect::Order(order) => hands.give(order),
            }
        }
        if looked.elapsed() >= every {
            looked = Instant::now();
            looks_so_far += 1;
            if count.is_some_and(|count| looks_so_far >= count) {
                return Ok(());
            }
            refresh(&mut board, &mut looks, &hands);
        }
    }
    Ok(())
}

/// Takes in a look; while the board pauses, only the answers to orders.
fn refresh(board: &mut Board, looks: &mut Looks, hands: &Hands) {
    board.take_answers(hands.answers(), hands.standing(looks.run_dirs()));
    if !board.is_paused {
        board.run_dirs = looks.shown();
        board.take(looks.look());
    }
}
