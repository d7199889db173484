//! The time that tests wait for other threads and processes, and the one sentence that says that it was not enough.
//! Ranks say the same in words of their own (`crates/bench/src/error.rs`); a test there checks those against these.
//!
//! `cargo xtask test` and `cargo xtask lab` know that sentence: a test that failed for no other reason is repeated
//! once, alone ([`ran_out`] decides). So a test that waits uses this crate, and reports everything else that it finds
//! in panics with other words.
#![forbid(unsafe_code)]

use std::fmt::Display;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

/// The beginning of the sentence.
pub const RAN_OUT: &str = "ran out of time: ";

/// The beginning of a panic that only says that another process of the same test failed; that process's own words are
/// in the same output.
pub const FOLLOWED: &str = "another process of the test failed: ";

/// The longest wait, to be multiplied by [`factor`]. It is far beyond the time that anything takes; it measures
/// nothing.
pub const LIMIT: Duration = Duration::from_secs(60);

/// The environment variable with the factor by which everything may take longer than usual, for tools that slow
/// everything down: a whole number.
pub const FACTOR_VARIABLE: &str = "RAILWEAVE_TEST_PATIENCE";

/// Returns the factor by which everything may take longer than usual: the value of [`FACTOR_VARIABLE`], or 1 if it is
/// not set or not a number.
#[must_use]
pub fn factor() -> u32 {
    std::env::var(FACTOR_VARIABLE).ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

/// Returns the sentence: waiting for `what` took `waited`, which was not enough.
#[must_use]
pub fn sentence(what: impl Display, waited: Duration) -> String {
    format!("{RAN_OUT}{what} after {} s", waited.as_secs_f64())
}

/// Calls `poll` until it returns a value, for at most [`LIMIT`] times [`factor`]. Returns the value.
///
/// # Panics
/// With the sentence about `what`, if there is none in time.
#[track_caller]
pub fn until<T>(what: &str, poll: impl FnMut() -> Option<T>) -> T {
    until_within(LIMIT, what, poll)
}

/// Calls `poll` until it returns a value, for at most `limit` times [`factor`]. Returns the value.
///
/// # Panics
/// With the sentence about `what`, if there is none in time.
#[track_caller]
pub fn until_within<T>(limit: Duration, what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let deadline = Deadline::new(limit);
    loop {
        if let Some(value) = poll() {
            return value;
        }
        deadline.check(what);
        thread::yield_now();
    }
}

/// Calls `is_freed` until it returns true, for at most [`LIMIT`] times [`factor`]. Anything not freed by then is a
/// leak, not a timeout. `what` is the clause that is then true, such as "every lane is closed".
///
/// # Panics
/// If something is not freed in time, but without the sentence, so that the test is not repeated.
#[track_caller]
pub fn until_freed(what: &str, mut is_freed: impl FnMut() -> bool) {
    let deadline = Deadline::new(LIMIT);
    while !is_freed() {
        assert!(!deadline.is_over(), "not freed: after {} s it is not true that {what}", deadline.limit.as_secs());
        thread::yield_now();
    }
}

/// The time by which something must have ended, for loops that cannot use [`until`].
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    begin: Instant,
    limit: Duration,
}

impl Deadline {
    /// Creates a deadline at `limit` times [`factor`] from now.
    #[must_use]
    pub fn new(limit: Duration) -> Self {
        Self { begin: Instant::now(), limit: limit * factor() }
    }

    /// Returns true if the time has run out.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.begin.elapsed() > self.limit
    }

    /// Returns if there is time left.
    ///
    /// # Panics
    /// With the sentence about `what`, if the time has run out.
    #[track_caller]
    pub fn check(&self, what: impl Display) {
        if self.is_over() {
            panic!("{}", sentence(what, self.limit));
        }
    }
}

/// Returns the value of a socket operation that has a timeout of its own.
///
/// # Panics
/// With the sentence about `what` if the operation timed out, and with the error if it failed otherwise.
#[track_caller]
pub fn in_time<T>(result: io::Result<T>, what: &str) -> T {
    match result {
        Ok(value) => value,
        // The errors of SO_RCVTIMEO and SO_SNDTIMEO (socket(7)).
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
            panic!("{RAN_OUT}{what} ({error})")
        }
        Err(error) => panic!("{what}: {error}"),
    }
}

/// Fails the test because another program failed: `what` says how, `said` is its output.
///
/// # Panics
/// Always; with the sentence about `what` if the output shows that only time ran out.
#[track_caller]
pub fn fail(what: impl Display, said: &str) -> ! {
    let begin = if ran_out(said) { RAN_OUT } else { "" };
    panic!("{begin}{what}; it said:\n{said}");
}

/// Returns true if the output of a test, or of the program `railweave`, shows that only time ran out: it says so, and
/// no panic and no error in it says anything else.
#[must_use]
pub fn ran_out(said: &str) -> bool {
    let mut ran_out = false;
    let mut lines = said.lines();
    while let Some(line) = lines.next() {
        let words = if line.starts_with("thread '") && line.contains(" panicked at ") {
            // A panic's message begins on the next line.
            lines.next().unwrap_or_default()
        } else if let Some(error) = line.strip_prefix("railweave: ") {
            // If several ranks failed, the likely cause comes first; a rank that waited too long comes after all
            // others.
            error
        } else {
            continue;
        };
        let is_late = words.starts_with(RAN_OUT) || late_rank(words);
        if !is_late && !words.starts_with(FOLLOWED) {
            return false;
        }
        ran_out |= is_late;
    }
    ran_out
}

/// Returns true if the error of a rank, such as `rank 0: ran out of time: ...`, begins with the sentence.
#[must_use]
pub fn late_rank(error: &str) -> bool {
    let words = error.strip_prefix("rank ").map(|rest| rest.trim_start_matches(|c: char| c.is_ascii_digit()));
    words.is_some_and(|rest| rest.starts_with(": ") && rest[2..].starts_with(RAN_OUT))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    /// Returns the message with which a body panics.
    fn panic_of(body: impl FnOnce()) -> String {
        let panic = catch_unwind(AssertUnwindSafe(body)).expect_err("it panics");
        panic.downcast::<String>().map_or_else(|_| "no text".to_owned(), |text| *text)
    }

    fn panicked(message: &str) -> String {
        format!("thread 'a' (17) panicked at a.rs:1:2:\n{message}\nnote: run with `RUST_BACKTRACE=1`\n")
    }

    #[test]
    fn a_wait_ends_with_a_value_or_the_sentence() {
        let mut polls = 0;
        let third = until("three", || {
            polls += 1;
            (polls == 3).then_some(polls)
        });
        assert_eq!(third, 3);
        let text = panic_of(|| until_within(Duration::ZERO, "a thing", || None));
        assert_eq!(text, "ran out of time: a thing after 0 s");
        assert!(ran_out(&panicked(&text)));
        Deadline::new(LIMIT).check("nothing");
        until_freed("nothing", || true);
    }

    #[test]
    fn a_socket_that_timed_out_is_told_from_one_that_failed() {
        assert_eq!(in_time(Ok(7), "a number"), 7);
        for kind in [io::ErrorKind::WouldBlock, io::ErrorKind::TimedOut] {
            let text = panic_of(|| in_time(Err(kind.into()), "a byte"));
            assert!(text.starts_with("ran out of time: a byte"), "{text}");
        }
        let text = panic_of(|| in_time(Err(io::ErrorKind::ConnectionReset.into()), "a byte"));
        assert!(!ran_out(&panicked(&text)), "{text}");
    }

    #[test]
    fn only_time_and_nothing_else_is_time() {
        let late = panicked("ran out of time: connect after 60 s");
        let followed = panicked("another process of the test failed: the peer ended with exit status: 101");
        let wrong = panicked("assertion `left == right` failed: byte 7");
        assert!(ran_out(&late));
        assert!(ran_out(&format!("running 1 test\n{late}{followed}WARN something\n")));
        assert!(!ran_out(&wrong) && !ran_out(&followed) && !ran_out(""));
        for both in [format!("{late}{wrong}"), format!("{wrong}{late}")] {
            assert!(!ran_out(&both), "{both}");
        }
        // The sentence somewhere in another message is not that message's beginning.
        assert!(!ran_out(&panicked("wrong byte; earlier a test ran out of time: x after 1 s")));
        assert!(!ran_out("ran out of time: nobody panicked"));
    }

    #[test]
    fn of_ranks_the_first_cause_counts() {
        let late = "rank 1: ran out of time: a receive after 30 s without progress";
        assert!(ran_out(&format!("WARN x\nrailweave: {late}; rank 0: was told to stop\n")));
        assert!(!ran_out(&format!("railweave: rank 0 was killed by signal 11 (SIGSEGV); {late}\n")));
        assert!(!ran_out(&format!("railweave: rank 0: wrong data; {late}\n")));
        assert!(!ran_out(&format!("railweave: {late}\n{}", panicked("index out of bounds"))));
        let text = panic_of(|| fail("bench failed", &format!("railweave: {late}\n")));
        assert!(text.starts_with("ran out of time: bench failed; it said:\nrailweave: rank 1"), "{text}");
        let text = panic_of(|| fail("bench failed", "railweave: rank 1: wrong data\n"));
        assert!(text.starts_with("bench failed; it said:\n"), "{text}");
    }
}
