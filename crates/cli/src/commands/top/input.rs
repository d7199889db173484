//! The keys that come from the terminal.
//!
//! They are read here and not by crossterm, which loses sight of keys that come together with a change of the window's
//! size, until the next key, and reads the end of a terminal that is gone again and again.

use super::terminal::reopened;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, read};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};
use termina::{Event, Parser};

/// The most bytes that are read at once: a terminal's line holds no more (`N_TTY_BUF_SIZE` of Linux).
const MOST: usize = 4096;

/// The time after which an escape that nothing follows is a key.
const ESCAPE_ALONE: Duration = Duration::from_millis(25);

/// The longest time between two parts of one sequence.
const LONGEST_GAP: Duration = Duration::from_millis(100);

const ESCAPE: u8 = 0x1b;
const BELL: u8 = 0x07;
const CTRL_C: u8 = 0x03;
const CTRL_Z: u8 = 0x1a;

/// The beginning of a text that is pasted.
const PASTE: &[u8] = b"\x1b[200~";

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
    found: VecDeque<Event>,
    /// The beginning of the sequence that is not whole yet.
    begun: Vec<u8>,
    /// True if the last byte was an escape, whose meaning comes with the next one.
    has_escape: bool,
    /// True in an answer of the terminal, which nobody has asked for: its text is no keys.
    is_in_answer: bool,
    /// The time for which nothing came although it was waited for.
    idle: Duration,
}

impl Input {
    /// Returns the keys of standard input, or of /dev/tty if that is something else.
    ///
    /// # Errors
    /// If there is no terminal.
    pub(super) fn new() -> io::Result<Self> {
        let stdin = io::stdin();
        let tty = if stdin.is_terminal() {
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
        while self.is_there_within(longest)? {
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
        self.events.found.pop_front()
    }

    fn is_there_within(&mut self, longest: Duration) -> io::Result<bool> {
        let begin = Instant::now();
        let is_there = self.is_there(longest);
        self.events.idle += begin.elapsed();
        is_there
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
        let is_late = std::mem::take(&mut self.idle) > LONGEST_GAP;
        let is_urgent = !bytes.is_empty() && bytes.iter().all(|byte| matches!(*byte, CTRL_C | CTRL_Z));
        // Whatever was begun long ago will not end any more, but a large text may be on its way for long. Whoever
        // presses these keys is heard in any case.
        if (is_late && !self.is_in_paste()) || is_urgent {
            self.forget();
            (self.has_escape, self.is_in_answer) = (false, false);
        }
        for byte in bytes {
            match (self.has_escape, *byte) {
                (false, ESCAPE) => self.has_escape = true,
                (true, b'\\') | (false, BELL) if self.is_in_answer => {
                    (self.is_in_answer, self.has_escape) = (false, false);
                }
                (_, byte) if self.is_in_answer => self.has_escape = byte == ESCAPE,
                // The beginnings of answers (DCS, SOS, OSC, PM and APC of ECMA-48).
                (true, b'P' | b'X' | b']' | b'^' | b'_') if !self.is_in_paste() => {
                    (self.is_in_answer, self.has_escape) = (true, false);
                }
                (true, ESCAPE) => self.feed(ESCAPE, false),
                (true, byte) => {
                    self.has_escape = false;
                    self.feed(ESCAPE, true);
                    self.feed(byte, true);
                }
                (false, byte) => self.feed(byte, true),
            }
        }
    }

    /// Nothing has come for a while.
    fn pause(&mut self) {
        if std::mem::take(&mut self.has_escape) && !self.is_in_answer {
            self.feed(ESCAPE, false);
        }
    }

    fn feed(&mut self, byte: u8, has_more: bool) {
        // Only a text that is pasted, and Alt with such a key, go on with such a byte.
        if byte < b' ' && !matches!(self.begun[..], [] | [ESCAPE]) && !self.is_in_paste() {
            self.forget();
        }
        self.parser.parse(&[byte], has_more);
        let before = self.found.len();
        self.found.extend(std::iter::from_fn(|| self.parser.pop()));
        if self.found.len() > before {
            self.begun.clear();
        } else if self.begun.len() < PASTE.len() {
            self.begun.push(byte);
        }
    }

    fn is_in_paste(&self) -> bool {
        self.begun == PASTE
    }

    /// Forgets the sequence that is not whole.
    fn forget(&mut self) {
        self.parser = Parser::default();
        self.begun.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use termina::event::{KeyCode, KeyEvent, Modifiers};

    /// Bytes that come at some times.
    #[derive(Default)]
    struct Typist {
        events: Events,
    }

    impl Typist {
        /// Returns the events of bytes that come with others.
        fn at_once(&mut self, bytes: &[u8]) -> Vec<Event> {
            self.events.take(bytes);
            self.events.found.drain(..).collect()
        }

        fn pause(&mut self) -> Vec<Event> {
            self.events.pause();
            self.events.found.drain(..).collect()
        }

        /// Returns the events of bytes that come long after others.
        fn later(&mut self, bytes: &[u8]) -> Vec<Event> {
            self.pause();
            self.events.idle += Duration::from_secs(1);
            self.at_once(bytes)
        }
    }

    fn key(code: KeyCode) -> Event {
        Event::Key(code.into())
    }

    fn letter(letter: char) -> Event {
        key(KeyCode::Char(letter))
    }

    fn with(letter: char, modifiers: Modifiers) -> Event {
        Event::Key(KeyEvent::new(KeyCode::Char(letter), modifiers))
    }

    #[test]
    fn keys_may_come_in_parts() {
        let mut typist = Typist::default();
        assert_eq!(typist.at_once(b"q\x1b"), [letter('q')]);
        assert_eq!(typist.at_once(b"["), []);
        assert_eq!(typist.at_once(b"Ad"), [key(KeyCode::Up), letter('d')]);
        assert_eq!(typist.at_once("\u{e4}".as_bytes()), [letter('\u{e4}')]);
        assert_eq!(typist.at_once(b"\x1b[15~\x1bOP"), [5, 1].map(|number| key(KeyCode::Function(number))));
    }

    #[test]
    fn an_escape_that_nothing_follows_is_a_key() {
        let mut typist = Typist::default();
        assert_eq!(typist.at_once(b"\x1b"), []);
        assert_eq!(typist.pause(), [key(KeyCode::Escape)]);
        assert_eq!(typist.at_once(b"\x1b\x1b"), [key(KeyCode::Escape)]);
        assert_eq!(typist.pause(), [key(KeyCode::Escape)]);
        assert_eq!(typist.at_once(b"\x1bd"), [with('d', Modifiers::ALT)]);
        assert_eq!(typist.pause(), []);
    }

    #[test]
    fn a_pasted_text_is_one_event_however_long_it_takes() {
        let mut typist = Typist::default();
        assert_eq!(typist.at_once(b"\x1b[200~d\n\x1b]"), []);
        assert_eq!(typist.later(b"d"), []);
        assert_eq!(typist.at_once(b"\x1b"), []);
        assert_eq!(typist.at_once(b"[201~q"), [Event::Paste("d\n\x1b]d".to_owned()), letter('q')]);
        // Nor does a byte that begins nothing change that.
        assert_eq!(typist.at_once(b"\xff\x1b[200~d\nd"), []);
        assert_eq!(typist.at_once(b"\x1b[201~"), [Event::Paste("d\nd".to_owned())]);
        // Its end may be lost.
        assert_eq!(typist.at_once(b"\x1b[200~d"), []);
        assert_eq!(typist.later(b"\x03\x03"), [with('c', Modifiers::CONTROL), with('c', Modifiers::CONTROL)]);
        assert_eq!(typist.at_once(b"d"), [letter('d')]);
    }

    #[test]
    fn sequences_that_are_not_known_are_no_keys() {
        // Shift and Left in rxvt, also with Alt.
        let mut typist = Typist::default();
        assert_eq!(typist.at_once(b"\x1b[d\x1b[d"), []);
        assert_eq!(typist.at_once(b"\x1b\x1b[d\x1b\x1b[d"), [key(KeyCode::Escape), key(KeyCode::Escape)]);
        assert_eq!(typist.at_once(b"\x1b[?\x1b\x1b[A"), [key(KeyCode::Escape), key(KeyCode::Up)]);
    }

    #[test]
    fn answers_that_nobody_has_asked_for_are_no_keys() {
        for answer in [&b"\x1b]11;rgb:dddd/dddd/dddd\x1b\\"[..], b"\x1b]11;rgb:dddd/d/d\x07", b"\x1bP1+rd\x1b\\"] {
            assert_eq!(Typist::default().at_once(&[answer, b"q"].concat()), [letter('q')], "{answer:?}");
        }
    }

    #[test]
    fn no_key_makes_the_later_ones_mute() {
        for begin in [
            &b"\x1b]"[..],
            b"\x1bP",
            b"\x1bX",
            b"\x1b^",
            b"\x1b_",
            b"\x1b[",
            b"\x1b[?",
            b"\x1b[>0;276;0c",
            b"\x1b[<",
            b"\x1bO",
            b"\xe2",
        ] {
            let mut typist = Typist::default();
            typist.at_once(begin);
            assert_eq!(typist.later(b"q"), [letter('q')], "{begin:?}");
            typist.at_once(begin);
            assert_eq!(typist.at_once(b"\x1a").last(), Some(&with('z', Modifiers::CONTROL)), "{begin:?}");
        }
        let mut typist = Typist::default();
        assert_eq!(typist.at_once(b"\x1b[?\x1b[Aq"), [key(KeyCode::Up), letter('q')], "the next key ends it");
    }

    proptest! {
        #[test]
        fn whatever_came_the_end_is_heard(parts in prop::collection::vec(
            (prop::collection::vec(prop_oneof![
                Just(ESCAPE), Just(b'['), Just(b'<'), Just(b';'), Just(b'~'), Just(b'?'), Just(b'2'), b'0'..=b'9',
                any::<u8>(),
            ], 0..12), any::<bool>()),
            0..12,
        )) {
            let mut typist = Typist::default();
            for (part, is_late) in parts {
                if is_late { typist.later(&part) } else { typist.at_once(&part) };
            }
            prop_assert_eq!(typist.later(&[CTRL_C]), [with('c', Modifiers::CONTROL)]);
            prop_assert_eq!(typist.later(b"q"), [letter('q')]);
        }
    }
}
