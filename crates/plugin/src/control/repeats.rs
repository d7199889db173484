//! Lines that are said a few times and then counted, because whoever causes them can do so as often as it likes.

/// The time for which lines like the first are counted, and the longest one for lines that go on like that.
pub(super) const WINDOW_NS: u64 = 1_000_000_000;
const LONGEST_WINDOW_NS: u64 = 64 * WINDOW_NS;

/// The lines that are said in that time.
const MOST: u32 = 4;

/// A line that was said, and the number of those that were not, because they are like it.
pub(super) struct Repeats {
    /// The time for which the others are counted, and its end.
    window_ns: u64,
    pub(super) until_ns: u64,
    said: u32,
    unsaid: u32,
    /// True if some were not said because as many as may be were.
    goes_on: bool,
}

/// The number of lines that were not said, and the time in which they came.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unsaid {
    count: u32,
    seconds: u64,
}

impl Repeats {
    pub(super) fn new(now_ns: u64) -> Self {
        let until_ns = now_ns.saturating_add(WINDOW_NS);
        Self { window_ns: WINDOW_NS, until_ns, said: 0, unsaid: 0, goes_on: false }
    }

    /// Returns true if a line is to be said now. Otherwise it is counted.
    pub(super) fn take(&mut self) -> bool {
        if self.said < MOST {
            self.said += 1;
            return true;
        }
        self.goes_on = true;
        self.count();
        false
    }

    /// Counts a line that is not to be said whatever was said before.
    pub(super) fn count(&mut self) {
        self.unsaid = self.unsaid.saturating_add(1);
    }

    /// Returns true if lines were counted.
    pub(super) fn has_any(&self) -> bool {
        self.unsaid > 0
    }

    /// Ends the time, and begins a longer one. Returns the lines that were counted, if any, and true if there were too
    /// many: then none is said in the next time. Otherwise the caller forgets them.
    pub(super) fn end(&mut self, now_ns: u64) -> (Option<Unsaid>, bool) {
        let count = std::mem::take(&mut self.unsaid);
        let unsaid = (count > 0).then_some(Unsaid { count, seconds: self.window_ns / WINDOW_NS });
        self.window_ns = self.window_ns.saturating_mul(2).min(LONGEST_WINDOW_NS);
        self.until_ns = now_ns.saturating_add(self.window_ns);
        (unsaid, std::mem::take(&mut self.goes_on))
    }
}

impl std::fmt::Display for Unsaid {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { count, seconds } = self;
        let times = if *count == 1 { "time" } else { "times" };
        match seconds {
            1 => write!(formatter, "{count} more {times} within a second"),
            _ => write!(formatter, "{count} more {times} within {seconds} s"),
        }
    }
}
