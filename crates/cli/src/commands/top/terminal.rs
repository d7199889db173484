//! The terminal: looks and keys in, frames out, until the user has seen enough.

use super::board::Board;
use super::hands::Hands;
use super::keys::{Effect, paste, press};
use super::looks::{Looks, Watcher, host};
use super::screen::draw;
use super::sheet::Sheet;
use super::style::Look;
use ratatui::backend::{Backend, ClearType, CrosstermBackend};
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::event::{self, DisableBracketedPaste, EnableBracketedPaste, Event};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode};
use ratatui::layout::Size;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Signal, getpid, kill_process};
use rustix::termios::tcgetwinsize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::error::Error;
use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Stdout, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::panic;
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

/// The room for the text of a frame, in bytes; a larger one is written in parts.
const FRAME: usize = 64 << 10;

/// The time for which the end waits for answers to orders.
const ANSWERS: Duration = Duration::from_secs(10);

/// The size of a terminal that does not know its own, as those of serial lines.
const USUAL: Size = Size { width: 80, height: 24 };

/// A terminal that is as it was before at the end, however that comes.
struct Screen {
    /// A frame is written at once.
    backend: CrosstermBackend<BufWriter<Stdout>>,
    sheet: Sheet,
}

impl Screen {
    fn take() -> Result<Self, String> {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            give_back();
            before(panic);
        }));
        let backend = CrosstermBackend::new(BufWriter::with_capacity(FRAME, io::stdout()));
        let screen = Self { backend, sheet: Sheet::default() };
        take()?;
        Ok(screen)
    }

    /// Draws a frame.
    fn draw(&mut self, board: &Board, look: Look) -> io::Result<()> {
        let size = size()?;
        if size != self.sheet.size() {
            self.sheet = Sheet::new(size);
            self.backend.clear_region(ClearType::All)?;
        }
        draw(&mut self.sheet, board, look);
        self.backend.draw(self.sheet.changes())?;
        Backend::flush(&mut self.backend)?;
        self.sheet.turn();
        Ok(())
    }

    /// Makes the next frame draw everything, whatever the terminal shows.
    fn forget(&mut self) {
        self.sheet = Sheet::default();
    }

    /// Gives the terminal back, and stops until the user comes again.
    fn suspend(&mut self) -> Result<(), String> {
        give_back();
        // The shell sees it stopped; from here on it goes on.
        let _ = kill_process(getpid(), Signal::TSTP);
        self.forget();
        take()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

fn take() -> Result<(), String> {
    let take = || {
        enable_raw_mode()?;
        // Without bracketed paste, a text that is pasted would be keys.
        execute!(io::stdout(), EnterAlternateScreen, EnableBracketedPaste, Hide)
    };
    take().map_err(|error: io::Error| {
        format!("the terminal cannot be used: {error}; allowed: one with cursor keys; try --plain, which writes lines")
    })
}

fn give_back() {
    // A terminal that is gone needs nothing back. The modes of the line matter most.
    let _ = disable_raw_mode();
    let _ = execute!(io::stdout(), DisableBracketedPaste, LeaveAlternateScreen, Show);
}

/// Returns the size of the terminal. crossterm would open /dev/tty for it, for each frame.
fn size() -> io::Result<Size> {
    let size = tcgetwinsize(io::stdout())?;
    let size = Size { width: size.ws_col, height: size.ws_row };
    Ok(if size.width == 0 || size.height == 0 { USUAL } else { size })
}

/// The terminal's keys, as crossterm finds them: standard input, or /dev/tty if that is something else.
struct Keys(OwnedFd);

impl Keys {
    fn new() -> io::Result<Self> {
        let stdin = io::stdin();
        let tty =
            if stdin.is_terminal() { stdin.as_fd().try_clone_to_owned()? } else { File::open("/dev/tty")?.into() };
        Ok(Self(tty))
    }

    /// Waits for keys, this time at most. Returns true if there are some. Signals end it early.
    ///
    /// # Errors
    /// If the terminal is gone. crossterm, asked then, would read the end of its input again and again.
    fn wait(&self, longest: Duration) -> io::Result<bool> {
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        let longest = Timespec { tv_sec: longest.as_secs().cast_signed(), tv_nsec: longest.subsec_nanos().into() };
        match poll(&mut fds, Some(&longest)) {
            Ok(_) if fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL) => {
                Err(io::Error::from(io::ErrorKind::BrokenPipe))
            }
            Ok(count) => Ok(count > 0),
            Err(Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

/// Shows the screen.
pub(super) fn run(looks: Looks, every: Duration, count: Option<u64>, look: Look) -> Result<(), Box<dyn Error>> {
    let is_told = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        let failed = |error| format!("signals cannot be waited for: {error}; try --plain, which does not");
        // The second one ends it wherever it is.
        signal_hook::flag::register_conditional_shutdown(signal, 1, Arc::clone(&is_told)).map_err(failed)?;
        signal_hook::flag::register(signal, Arc::clone(&is_told)).map_err(failed)?;
    }
    let hands = Looks::hands()?;
    let watcher = Watcher::new(looks);
    let watcher = watcher.map_err(|error| format!("no thread can be started: {error}; try a higher `ulimit -u`"))?;
    let mut session = Session { board: Board::new(host()), watcher, every, count, looks_so_far: 0 };
    let screen = Screen::take()?;
    let result = session.run(screen, &hands, &is_told, look);
    // The terminal is as it was.
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
    fn run(
        &mut self,
        mut screen: Screen,
        hands: &Hands,
        is_told: &AtomicBool,
        look: Look,
    ) -> Result<(), Box<dyn Error>> {
        let lost = |error: io::Error| format!("the terminal is lost: {error}; try another one");
        let keys = Keys::new().map_err(lost)?;
        self.watcher.ask();
        let mut looked = Instant::now();
        while !is_told.load(Ordering::Relaxed) {
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
            // All keys that have come are taken before anything is drawn.
            let is_there = keys.wait(wait).map_err(lost)?;
            let mut has_keys = is_there && event::poll(Duration::ZERO).map_err(lost)?;
            if is_there && !has_keys {
                // More has come at once than crossterm reads at once; it sees the rest with the next key.
                has_keys = event::poll(LATER).map_err(lost)?;
            }
            while has_keys {
                let key = match event::read().map_err(lost)? {
                    Event::Key(key) => Some(key),
                    Event::Paste(text) => {
                        paste(&mut self.board, &text);
                        None
                    }
                    _ => None,
                };
                match key.map_or(Effect::None, |key| press(&mut self.board, key)) {
                    Effect::None => {}
                    Effect::Quit => return Ok(()),
                    Effect::Suspend => screen.suspend()?,
                    Effect::Redraw => screen.forget(),
                    Effect::Faster => self.every = (self.every / 2).max(FASTEST.min(self.every)),
                    Effect::Slower => self.every = (self.every * 2).min(SLOWEST.max(self.every)),
                    Effect::Order(order) => hands.give(order),
                }
                has_keys = event::poll(Duration::ZERO).map_err(lost)?;
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
