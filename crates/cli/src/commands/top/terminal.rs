//! The terminal itself: taken and given back, and frames on it.

use super::board::Board;
use super::screen::draw;
use super::sheet::Sheet;
use super::style::Look;
use ratatui::backend::{Backend, ClearType, CrosstermBackend};
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::event::{DisableBracketedPaste, EnableBracketedPaste};
use ratatui::crossterm::queue;
use ratatui::crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode};
use ratatui::layout::Size;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::{Signal, getpgrp, getsid, kill_current_process_group};
use rustix::termios::{tcgetpgrp, tcgetsid, tcgetwinsize};
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGTERM, SIGWINCH};
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::panic;
use std::process::exit;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// The size of a terminal that does not know its own, as those of serial lines.
const USUAL: Size = Size { width: 80, height: 24 };

/// The time between two looks for signals while a terminal takes nothing, and the time for which the end waits for it.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
const END: Duration = Duration::from_secs(1);

/// The exit code of Rust's programs after a panic.
const PANIC: i32 = 101;

/// The signals that ask for the end.
const ENDS: [i32; 3] = [SIGTERM, SIGINT, SIGHUP];

/// True while the terminal is taken.
static IS_TAKEN: AtomicBool = AtomicBool::new(false);

/// The signals that have come.
#[derive(Clone, Default)]
pub(super) struct Signals {
    is_told: Arc<AtomicBool>,
    is_resized: Arc<AtomicBool>,
    is_continued: Arc<AtomicBool>,
}

impl Signals {
    /// Begins to note signals.
    ///
    /// # Errors
    /// If there is no room for that.
    pub(super) fn note() -> io::Result<Self> {
        let signals = Self::default();
        for signal in ENDS {
            signal_hook::flag::register(signal, Arc::clone(&signals.is_told))?;
        }
        signal_hook::flag::register(SIGWINCH, Arc::clone(&signals.is_resized))?;
        signal_hook::flag::register(SIGCONT, Arc::clone(&signals.is_continued))?;
        Ok(signals)
    }

    /// Has the second signal end the program wherever it is, once the terminal is given back.
    ///
    /// # Errors
    /// If there is no room for that.
    pub(super) fn end_at_the_second(&self) -> io::Result<()> {
        let has_come = Arc::new(AtomicBool::new(self.is_told()));
        for signal in ENDS {
            signal_hook::flag::register_conditional_shutdown(signal, 1, Arc::clone(&has_come))?;
            signal_hook::flag::register(signal, Arc::clone(&has_come))?;
        }
        Ok(())
    }

    /// Returns true if the end was asked for.
    pub(super) fn is_told(&self) -> bool {
        self.is_told.load(Ordering::Relaxed)
    }
}

/// A terminal that is as it was before at the end, however that comes.
pub(super) struct Screen {
    sheet: Sheet,
    /// The text of a frame, which is written at once.
    frame: Vec<u8>,
    signals: Signals,
}

impl Screen {
    /// Takes the terminal.
    ///
    /// # Errors
    /// If it cannot be used.
    pub(super) fn take(signals: Signals) -> io::Result<Self> {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            let was_taken = give_back();
            before(panic);
            // Other threads would go on to draw.
            if was_taken {
                exit(PANIC);
            }
        }));
        let screen = Self { sheet: Sheet::default(), frame: Vec::new(), signals };
        take(&screen.signals)?;
        Ok(screen)
    }

    /// Draws a frame. It stays a part if the end is asked for meanwhile.
    ///
    /// # Errors
    /// If the terminal is gone.
    pub(super) fn draw(&mut self, board: &Board, look: Look) -> io::Result<()> {
        if self.signals.is_continued.swap(false, Ordering::Relaxed) {
            // Others have used it meanwhile.
            give_back();
            take(&self.signals)?;
            self.forget();
        }
        // One that became small and large again has lost what was there.
        if self.signals.is_resized.swap(false, Ordering::Relaxed) {
            self.forget();
        }
        let size = size()?;
        self.frame.clear();
        let mut backend = CrosstermBackend::new(&mut self.frame);
        if size != self.sheet.size() {
            self.sheet = Sheet::new(size);
            backend.clear_region(ClearType::All)?;
        }
        draw(&mut self.sheet, board, look);
        self.sheet.show(&mut backend)?;
        write(&self.frame, || self.signals.is_told() || !IS_TAKEN.load(Ordering::Relaxed))
    }

    /// Makes the next frame draw everything, whatever the terminal shows.
    pub(super) fn forget(&mut self) {
        self.sheet = Sheet::default();
    }

    /// Gives the terminal back, and stops until the user comes again.
    pub(super) fn suspend(&mut self) {
        give_back();
        // The shell sees all of its job stopped. Where nobody would continue it, the signal does nothing.
        let _ = kill_current_process_group(Signal::TSTP);
        self.signals.is_continued.store(true, Ordering::Relaxed);
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

fn take(signals: &Signals) -> io::Result<()> {
    // A process in the background waits for its turn: until then the modes are those of somebody else.
    while tcgetpgrp(output()).is_ok_and(|front| front != getpgrp()) && !signals.is_told() {
        signals.is_continued.store(false, Ordering::Relaxed);
        let _ = kill_current_process_group(Signal::TTOU);
        // Where the signal is ignored, or nobody would continue it, it does nothing.
        if !signals.is_continued.load(Ordering::Relaxed) {
            break;
        }
    }
    signals.is_continued.store(false, Ordering::Relaxed);
    enable_raw_mode()?;
    IS_TAKEN.store(true, Ordering::Relaxed);
    let mut bytes = Vec::new();
    // Without bracketed paste, a text that is pasted would be keys.
    queue!(bytes, EnterAlternateScreen, EnableBracketedPaste, Hide)?;
    write(&bytes, || signals.is_told())
}

/// Gives the terminal back, if it is taken. One that is gone needs nothing back. Returns true if it was taken.
fn give_back() -> bool {
    if !IS_TAKEN.swap(false, Ordering::Relaxed) {
        return false;
    }
    // The modes of the line matter most.
    let _ = disable_raw_mode();
    let mut bytes = Vec::new();
    let _ = queue!(bytes, DisableBracketedPaste, LeaveAlternateScreen, Show);
    let begin = Instant::now();
    let _ = write(&bytes, || begin.elapsed() > END);
    true
}

/// Returns the size of the terminal. crossterm would open /dev/tty for it, for each frame.
fn size() -> io::Result<Size> {
    let size = tcgetwinsize(output())?;
    let or = |number, usual| if number == 0 { usual } else { number };
    Ok(Size { width: or(size.ws_col, USUAL.width), height: or(size.ws_row, USUAL.height) })
}

/// Opens a terminal again: then nobody waits on it, and it is as it was for those that use the file that is given.
///
/// # Errors
/// If that may not be: a terminal of another user, as after su(1), that controls other processes.
pub(super) fn reopened(tty: BorrowedFd<'_>, options: &mut OpenOptions) -> io::Result<OwnedFd> {
    let options = options.custom_flags((OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed());
    let again = options.open(format!("/proc/self/fd/{}", tty.as_raw_fd())).or_else(|error| {
        // Everybody may open the one that controls them.
        let is_controlling = tcgetsid(tty).is_ok_and(|session| getsid(None) == Ok(session));
        if is_controlling { options.open("/dev/tty") } else { Err(error) }
    });
    Ok(again?.into())
}

/// Returns the terminal on which frames are written.
fn output() -> BorrowedFd<'static> {
    static OUTPUT: OnceLock<Option<OwnedFd>> = OnceLock::new();
    let stdout = rustix::stdio::stdout();
    OUTPUT.get_or_init(|| reopened(stdout, OpenOptions::new().write(true)).ok()).as_ref().map_or(stdout, AsFd::as_fd)
}

/// Writes to the terminal, until that is done or `ends` says to leave it.
fn write(bytes: &[u8], ends: impl Fn() -> bool) -> io::Result<()> {
    let mut rest = bytes;
    while !rest.is_empty() && !ends() {
        match rustix::io::write(output(), rest) {
            Ok(count) => rest = &rest[count..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                // A signal ends the wait too.
                let _ = poll(&mut [PollFd::from_borrowed_fd(output(), PollFlags::OUT)], Some(&PAUSE));
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
