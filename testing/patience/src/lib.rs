//! How long tests wait for other threads and processes, and the one sentence by which they say that it was not enough.
//! Ranks say the same by words of their own (`crates/bench/src/error.rs`), which a test there holds beside these.
//!
//! `cargo xtask test` and `cargo xtask lab` know that sentence: what failed for no other reason is repeated once, alone
//! ([`ran_out`] decides). So a test that waits does it by this crate, and everything else that a test finds is a panic
//! of its own.
#![forbid(unsafe_code)]

use std::fmt::Display;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

/// What the sentence begins with.
pub const RAN_OUT: &str = "ran out of time: ";

/// What a panic begins with that only says that another process of the same test failed, whose own words are in the
/// same output.
pub const FOLLOWED: &str = "another process of the test failed: ";

/// How long anything that is waited for may take. Far beyond what it takes: nothing is measured by it.
pub const LIMIT: Duration = Duration::from_secs(60);

/// The variable that says how many times longer than usual everything may take, where a tool slows everything down.
pub const FACTOR_VARIABLE: &str = "RAILWEAVE_TEST_PATIENCE";

/// How much longer than usual everything may take: what [`FACTOR_VARIABLE`] says, or 1.
#[must_use]
pub fn factor() -> u32 {
    std::env::var(FACTOR_VARIABLE).ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

/// The sentence.
#[must_use]
pub fn sentence(what: impl Display, waited: Duration) -> String {
    format!("{RAN_OUT}{what} after {} s", waited.as_secs_f64())
}

/// Polls until there is an answer, for at most [`LIMIT`].
///
/// # Panics
/// With the sentence, when there is none in time.
#[track_caller]
pub fn until<T>(what: &str, poll: impl FnMut() -> Option<T>) -> T {
    until_within(LIMIT, what, poll)
}

/// Polls until there is an answer, for at most so long.
///
/// # Panics
/// With the sentence, when there is none in time.
#[track_caller]
pub fn until_within<T>(limit: Duration, what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let deadline = Deadline::new(limit);
    loop {
        if let Some(answer) = poll() {
            return answer;
        }
        deadline.check(what);
        thread::yield_now();
    }
}

/// Polls until `is_freed`, for at most [`LIMIT`]. What is not freed then is a leak, and no matter of time.
///
/// # Panics
/// When something is left in the end; such a test is not repeated.
#[track_caller]
pub fn until_freed(what: &str, mut is_freed: impl FnMut() -> bool) {
    let deadline = Deadline::new(LIMIT);
    while !is_freed() {
        assert!(!deadline.is_over(), "not freed, for {} s this did not come true: {what}", deadline.limit.as_secs());
        thread::yield_now();
    }
}

/// When something must be over, for loops that are no [`until`].
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    begin: Instant,
    limit: Duration,
}

impl Deadline {
    /// One that is `limit` away, times [`factor`].
    #[must_use]
    pub fn new(limit: Duration) -> Self {
        Self { begin: Instant::now(), limit: limit * factor() }
    }

    /// Whether the time is over.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.begin.elapsed() > self.limit
    }

    /// Goes on while there is time.
    ///
    /// # Panics
    /// With the sentence, when the time is over.
    #[track_caller]
    pub fn check(&self, what: impl Display) {
        if self.is_over() {
            panic!("{}", sentence(what, self.limit));
        }
    }
}

/// The answer of a socket that has a timeout of its own.
///
/// # Panics
/// With the sentence when it timed out, and with the error where it is another one.
#[track_caller]
pub fn in_time<T>(answer: io::Result<T>, what: &str) -> T {
    match answer {
        Ok(answer) => answer,
        // What SO_RCVTIMEO and SO_SNDTIMEO end with (socket(7)).
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
            panic!("{RAN_OUT}{what} ({error})")
        }
        Err(error) => panic!("{what}: {error}"),
    }
}

/// The panic about another program that ended with a status other than 0 and said `said`: with the sentence where that
/// shows that time ran out and nothing else.
///
/// # Panics
/// Always.
#[track_caller]
pub fn fail(what: impl Display, said: &str) -> ! {
    let begin = if ran_out(said) { RAN_OUT } else { "" };
    panic!("{begin}{what}; it said:\n{said}");
}

/// Whether what a test, or the program `railweave`, said shows that time ran out and that nothing else was wrong: it
/// says so, and no panic and no error in it says anything else.
#[must_use]
pub fn ran_out(said: &str) -> bool {
    let mut ran_out = false;
    let mut lines = said.lines();
    while let Some(line) = lines.next() {
        let words = if line.starts_with("thread '") && line.contains(" panicked at ") {
            // The message of a panic begins on the next line.
            lines.next().unwrap_or_default()
        } else if let Some(error) = line.strip_prefix("railweave: ") {
            // Of several ranks that failed, the likely cause comes first, and one that waited too long after all
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

/// Whether the error of a rank, such as `rank 0: ran out of time: ...`, begins with the sentence.
#[must_use]
pub fn late_rank(error: &str) -> bool {
    let words = error.strip_prefix("rank ").map(|rest| rest.trim_start_matches(|c: char| c.is_ascii_digit()));
    words.is_some_and(|rest| rest.starts_with(": ") && rest[2..].starts_with(RAN_OUT))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    /// What a body panics with.
    fn panic_of(body: impl FnOnce()) -> String {
        let panic = catch_unwind(AssertUnwindSafe(body)).expect_err("it panics");
        panic.downcast::<String>().map_or_else(|_| "no text".to_owned(), |text| *text)
    }

    fn panicked(message: &str) -> String {
        format!("thread 'a' (17) panicked at a.rs:1:2:\n{message}\nnote: run with `RUST_BACKTRACE=1`\n")
    }

    #[test]
    fn what_waits_ends_with_an_answer_or_the_sentence() {
        let mut polls = 0;
        let answer = until("three", || {
            polls += 1;
            (polls == 3).then_some(polls)
        });
        assert_eq!(answer, 3);
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
