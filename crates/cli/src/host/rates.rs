//! The rates of rails between two readings of a file.

use railweave_telemetry::{Rail, Snapshot};

/// The seconds after which a file that was not written says that nothing moves: no process looks at its counters later.
const QUIET_S: f64 = 2.5;

/// The bytes of each rail in a file, when it was written.
#[derive(Clone, Debug)]
pub(crate) struct Counts {
    pub(crate) written_ns: u64,
    /// The bytes that were sent and received.
    bytes: ByRail<[u64; 2]>,
}

impl Counts {
    pub(crate) fn of(snapshot: &Snapshot) -> Self {
        let rails = snapshot.state.rails.iter();
        Self { written_ns: snapshot.written_ns, bytes: rails.map(|rail| (id(rail), carried(rail))).collect() }
    }
}

/// The bytes per second of a rail.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Rate {
    pub(crate) sent: f64,
    pub(crate) received: f64,
}

/// The rates of the rails in a file, since an earlier write.
pub(crate) struct Rates<'a> {
    before: Option<&'a Counts>,
    seconds: f64,
    is_quiet: bool,
}

impl<'a> Rates<'a> {
    /// Returns the rates of a file that was last written at `written_ns`, at the time `now_ns`.
    pub(crate) fn new(before: Option<&'a Counts>, written_ns: u64, now_ns: u64) -> Self {
        Self {
            before,
            seconds: before.map_or(0.0, |before| seconds_since(before.written_ns, written_ns)),
            is_quiet: seconds_since(written_ns, now_ns) > QUIET_S,
        }
    }

    /// Returns the rate of a rail; `None` if it was not there before, or the file was not written since.
    pub(crate) fn of(&self, rail: &Rail) -> Option<Rate> {
        let [sent_before, received_before] = *self.before?.bytes.get(id(rail))?;
        if self.is_quiet {
            return Some(Rate::default());
        }
        let [sent, received] = carried(rail);
        let per_second = |bytes: u64| bytes as f64 / self.seconds;
        (self.seconds > 0.0).then(|| Rate {
            sent: per_second(sent.saturating_sub(sent_before)),
            received: per_second(received.saturating_sub(received_before)),
        })
    }
}

/// A rail in its file: the number of its connection, and its own.
pub(crate) type RailId = (u32, u8);

/// Values by rail, sorted: files have their rails in this order, so it costs nothing.
#[derive(Clone, Debug)]
pub(crate) struct ByRail<T>(Vec<(RailId, T)>);

impl<T> ByRail<T> {
    pub(crate) fn get(&self, id: RailId) -> Option<&T> {
        let place = self.0.binary_search_by_key(&id, |(id, _)| *id).ok()?;
        Some(&self.0[place].1)
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

impl<T> Default for ByRail<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> FromIterator<(RailId, T)> for ByRail<T> {
    fn from_iter<I: IntoIterator<Item = (RailId, T)>>(values: I) -> Self {
        let more = values.into_iter();
        let mut values = Vec::with_capacity(more.size_hint().1.unwrap_or(0));
        values.extend(more);
        if values.capacity() / 2 > values.len() {
            values.shrink_to_fit();
        }
        if !values.is_sorted_by_key(|(id, _)| *id) {
            values.sort_by_key(|(id, _)| *id);
        }
        Self(values)
    }
}

/// Returns the id of a rail.
pub(crate) fn id(rail: &Rail) -> RailId {
    (rail.connection, rail.number)
}

fn carried(rail: &Rail) -> [u64; 2] {
    [rail.bytes_sent, rail.bytes_received]
}

/// Returns the time since then in seconds; 0 if it is in the future.
pub(crate) fn seconds_since(then_ns: u64, now_ns: u64) -> f64 {
    now_ns.saturating_sub(then_ns) as f64 / 1e9
}
