//! The keys that come from the terminal.
//!
//! They are read here and not by crossterm, which loses sight of keys that come together with a change of the window's
//! size, until the next key, and reads the end of a terminal that is gone again and again.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, read};
use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;
use termina::{Event, Parser};

use super::tty::reopened;

/// The most bytes that are read at once: a terminal's line holds no more (`N_TTY_BUF_SIZE` of Linux).
const MOST: usize = 4096;

/// The time after which an escape that nothing follows is a key.
const ESCAPE_ALONE: Duration = Duration::from_millis(25);

const ESCAPE: u8 = 0x1b;

/// The keys of a terminal.
pub(super) struct Input {
    tty: OwnedFd,
    bytes: [u8; MOST],
    events: Events,
}

/// Bytes that become keys.
#[derive(Default)]
struct Events {
    parser: Parser,
    /// True if the last byte was an escape, whose meaning comes with the next one.
    has_escape: bool,
}

impl Input {
    /// Returns the keys of standard input, or of /dev/tty if that is something else.
    ///
    /// # Errors
    /// If there is no terminal.
    pub(super) fn new() -> io::Result<Self> {
        let stdin = io::stdin();
        let tty = if stdin.is_terminal() {
            // The terminal of another user, as after su(1), cannot be opened.
            reopened(stdin.as_fd(), File::options().read(true)).or_else(|_| stdin.as_fd().try_clone_to_owned())?
        } else {
            File::open("/dev/tty")?.into()
        };
        Ok(Self { tty, bytes: [0; MOST], events: Events::default() })
    }

    /// Waits for keys, this time at most, and takes them in. Signals end it early.
    ///
    /// # Errors
    /// If the terminal is gone.
    pub(super) fn wait(&mut self, longest: Duration) -> io::Result<()> {
        let mut longest = longest;
        while self.is_there(longest)? {
            match read(&self.tty, &mut self.bytes) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.events.take(&self.bytes[..count]),
                // Somebody else has read it, or a signal has come.
                Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
            if !self.events.has_escape {
                return Ok(());
            }
            longest = ESCAPE_ALONE;
        }
        self.events.pause();
        Ok(())
    }

    /// Returns the next key, or text that was pasted.
    pub(super) fn next(&mut self) -> Option<Event> {
        self.events.parser.pop()
    }

    fn is_there(&self, longest: Duration) -> io::Result<bool> {
        let mut fds = [PollFd::new(&self.tty, PollFlags::IN)];
        let longest = Timespec { tv_sec: longest.as_secs().cast_signed(), tv_nsec: longest.subsec_nanos().into() };
        match poll(&mut fds, Some(&longest)) {
            Ok(_) if fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL) => {
                Err(io::ErrorKind::BrokenPipe.into())
            }
            Ok(count) => Ok(count > 0),
            Err(Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

impl Events {
    fn take(&mut self, bytes: &[u8]) {
        for byte in bytes {
            match (self.has_escape, *byte) {
                (false, ESCAPE) => self.has_escape = true,
                (false, byte) => self.parser.parse(&[byte], true),
                // They begin answers of terminals, which nobody has asked, and would swallow all keys up to their end.
                (true, b']' | b'P' | b'X' | b'^' | b'_') => self.has_escape = false,
                (true, byte) => {
                    self.has_escape = byte == ESCAPE;
                    self.parser.parse(&[ESCAPE], !self.has_escape);
                    if !self.has_escape {
                        self.parser.parse(&[byte], true);
                    }
                }
            }
        }
    }

    /// Nothing has come for a while.
    fn pause(&mut self) {
        if std::mem::take(&mut self.has_escape) {
            self.parser.parse(&[ESCAPE], false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use termina::event::{KeyCode, KeyEvent, Modifiers};

    fn all(events: &mut Events) -> Vec<Event> {
        std::iter::from_fn(|| events.parser.pop()).collect()
    }

    fn key(code: KeyCode) -> Event {
        Event::Key(code.into())
    }

    #[test]
    fn keys_may_come_in_parts() {
        let mut events = Events::default();
        events.take(b"q\x1b");
        events.take(b"[");
        events.take(b"Ad");
        assert_eq!(all(&mut events), [key(KeyCode::Char('q')), key(KeyCode::Up), key(KeyCode::Char('d'))]);
        events.take("\u{e4}".as_bytes());
        assert_eq!(all(&mut events), [key(KeyCode::Char('\u{e4}'))]);
    }

    #[test]
    fn an_escape_that_nothing_follows_is_a_key() {
        let mut events = Events::default();
        events.take(b"\x1b");
        assert_eq!(all(&mut events), []);
        events.pause();
        assert_eq!(all(&mut events), [key(KeyCode::Escape)]);
        events.take(b"\x1b\x1b");
        events.pause();
        assert_eq!(all(&mut events), [key(KeyCode::Escape), key(KeyCode::Escape)]);
        events.take(b"\x1bd");
        assert_eq!(all(&mut events), [Event::Key(KeyEvent::new(KeyCode::Char('d'), Modifiers::ALT))]);
        events.pause();
        assert_eq!(all(&mut events), []);
    }

    #[test]
    fn a_pasted_text_is_one_event() {
        let mut events = Events::default();
        events.take(b"\x1b[200~dd");
        events.pause();
        events.take(b"\x1b");
        events.take(b"[201~q");
        assert_eq!(all(&mut events), [Event::Paste("dd".to_owned()), key(KeyCode::Char('q'))]);
    }

    #[test]
    fn no_key_makes_the_next_ones_mute() {
        for begin in [b"\x1b]", b"\x1bP", b"\x1bX", b"\x1b^", b"\x1b_"] {
            let mut events = Events::default();
            events.take(begin);
            events.take(b"q");
            assert_eq!(all(&mut events).last(), Some(&key(KeyCode::Char('q'))), "{begin:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_taken(parts in prop::collection::vec(
            prop::collection::vec(prop_oneof![
                Just(ESCAPE), Just(b'['), Just(b'<'), Just(b';'), Just(b'~'), Just(b'?'), b'0'..=b'9', any::<u8>(),
            ], 0..12),
            0..12,
        )) {
            let mut events = Events::default();
            for part in parts {
                events.take(&part);
                events.pause();
            }
            // Whatever came, a sequence of the longest kind ends.
            events.take(b"\x1b[201~");
            all(&mut events);
        }
    }
}
