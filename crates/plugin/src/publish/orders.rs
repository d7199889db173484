//! The orders of the policy files, for each connection.

use std::time::SystemTime;

use railweave_fabric::{PolicyName, RailSet};
use railweave_telemetry::{
    Connection, Device, Direction, Order as FileOrder, Policy, Process, RAILS, Steering, Subject,
};
use railweave_transport::{Order, OwnWeights};

use super::records::{Entry, Records};

/// The most lines about changed orders in a second: an agent may write a hundred times in that time.
const MOST_LINES: usize = 3;

/// The time for which that many lines may be written, in nanoseconds.
const WINDOW_NS: u64 = 1_000_000_000;

/// The policy files, and the lines about them.
pub(super) struct Orders {
    files: Steering,
    /// The revision of the files that the connections follow.
    followed: u64,
    /// True if it was said that a file orders `static`, and there are no weights for it.
    is_static_said: bool,
    window_ns: u64,
    lines: usize,
    /// True if the order of a connection has changed, and no line has named it yet.
    has_untold: bool,
}

/// Connections to one peer by one device in one direction, which change their order together.
struct Group {
    peer_host: String,
    peer_rank: Option<u32>,
    device: Option<u32>,
    direction: Direction,
    count: usize,
    text: String,
}

impl Orders {
    pub(super) fn new(files: Steering) -> Self {
        Self { files, followed: 0, is_static_said: false, window_ns: 0, lines: 0, has_untold: false }
    }

    /// Returns the time until the next look at the files, in nanoseconds.
    pub(super) fn next_poll_ns(&self) -> u64 {
        u64::try_from(self.files.next_poll().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Reads the files. Returns sentences about them to log, and true if their orders may have changed.
    pub(super) fn poll(&mut self, now: SystemTime) -> (Vec<String>, bool) {
        let sentences = self.files.poll(now);
        let revision = self.files.revision();
        (sentences, std::mem::replace(&mut self.followed, revision) != revision)
    }

    /// Orders the connections from this place on. Returns a warning if an order cannot be followed.
    pub(super) fn apply(&mut self, records: &mut Records, from: usize, time_ns: u64) -> Option<String> {
        let process = records.state.process.clone();
        let mut lacks_weights = false;
        let files = &mut self.files;
        self.has_untold |= records.order(from, time_ns, |record, entry, devices| {
            let found = decide(files, &process, record, entry, devices);
            lacks_weights |= found.is_some_and(|found| found.policy == Some(Policy::Static))
                && entry.steering.own_weights().fixed.is_none();
            order(found, &entry.own, entry.steering.own_weights())
        });
        if lacks_weights && !std::mem::replace(&mut self.is_static_said, true) {
            return Some(
                "a policy file orders the policy static, but RAILWEAVE_WEIGHTS is not set, so adaptive replaces it; \
                 allowed: static in jobs with RAILWEAVE_WEIGHTS; try weights in the rule (said once)"
                    .to_owned(),
            );
        }
        None
    }

    /// Returns the lines about connections whose orders have changed, which name their present orders. If too many were
    /// returned within a second, the others wait for a later call.
    pub(super) fn lines(&mut self, records: &mut Records, time_ns: u64) -> Vec<String> {
        if !self.has_untold {
            return Vec::new();
        }
        if time_ns.abs_diff(self.window_ns) >= WINDOW_NS {
            (self.window_ns, self.lines) = (time_ns, 0);
        }
        let room = MOST_LINES - self.lines;
        if room == 0 {
            return Vec::new();
        }
        let (mut groups, mut others) = (Vec::<Group>::new(), 0);
        records.tell_orders(|record, entry| {
            if let Some(group) = groups.iter_mut().find(|group| group.holds(record)) {
                group.count += 1;
            } else if groups.len() < room {
                groups.push(Group::new(record, entry));
            } else {
                others += 1;
            }
        });
        self.has_untold = false;
        self.lines += groups.len();
        let mut lines: Vec<_> = groups.iter().map(|group| group.line(&records.state.devices)).collect();
        if let Some(last) = lines.last_mut().filter(|_| others > 0) {
            *last += &format!(" (so have the orders of {others} other connections changed)");
        }
        lines
    }
}

impl Group {
    fn new(record: &Connection, entry: &Entry) -> Self {
        Self {
            peer_host: record.peer_host.clone(),
            peer_rank: record.peer_rank,
            device: record.device,
            direction: record.direction,
            count: 1,
            text: describe(&entry.given, entry.given == entry.own, entry.up),
        }
    }

    fn holds(&self, record: &Connection) -> bool {
        (self.direction, self.device, self.peer_rank) == (record.direction, record.device, record.peer_rank)
            && self.peer_host == record.peer_host
    }

    fn line(&self, devices: &[Device]) -> String {
        let device = self.device.and_then(|device| devices.get(device as usize)).map_or("?", |device| &device.name);
        let rank = self.peer_rank.map(|rank| format!(" rank {rank}")).unwrap_or_default();
        let (verb, to) = if self.direction == Direction::Send { ("send", "to") } else { ("receive", "from") };
        let (host, count, text) = (&self.peer_host, self.count, &self.text);
        format!("connections that {verb} {to} {host}{rank} by {device} ({count}): {text}")
    }
}

/// Returns the order of the files for a connection.
fn decide(
    files: &mut Steering,
    process: &Process,
    record: &Connection,
    entry: &Entry,
    devices: &[Device],
) -> Option<FileOrder> {
    let mut rails = [""; RAILS];
    for (place, name) in rails.iter_mut().zip(&entry.ports) {
        *place = name;
    }
    files.decide(&Subject {
        job: &process.job,
        rank: process.rank,
        peer_host: &record.peer_host,
        peer_rank: record.peer_rank,
        device: record.device.and_then(|device| devices.get(device as usize)).map_or("", |device| &device.name),
        rails: &rails[..entry.ports.len().min(RAILS)],
    })
}

/// Returns the order for an end that knows these weights, and that follows `own` without files.
fn order(found: Option<FileOrder>, own: &Order, weights: &OwnWeights) -> Order {
    let Some(FileOrder { weights: given, policy, drained }) = found else {
        return *own;
    };
    let order = match (given, policy) {
        (Some(given), _) => Order::new(PolicyName::Agent, given),
        (None, Some(Policy::Static)) if weights.fixed.is_some() => weights.order(PolicyName::Static),
        (None, Some(Policy::Speed)) => weights.order(PolicyName::Speed),
        (None, Some(_)) => weights.order(PolicyName::Adaptive),
        (None, None) => *own,
    };
    Order { allowed: RailSet::from_bits(!drained), ..order }
}

/// Returns the words for an order of a connection with these rails; `is_own` if the settings would give the same.
fn describe(order: &Order, is_own: bool, up: RailSet) -> String {
    let policy = order.policy.name();
    if is_own {
        return format!("no policy file orders anything else, so the settings hold: {policy}");
    }
    let drained: Vec<_> =
        (0..8).filter(|rail| order.allowed.bits() & 1 << rail == 0).map(|rail| rail.to_string()).collect();
    let drained = match &drained[..] {
        [] => String::new(),
        [rail] => format!(", without rail {rail}"),
        [rails @ .., last] => format!(", without rails {} and {last}", rails.join(", ")),
    };
    let vain =
        if (up & order.allowed).is_empty() { ": no other is up, so that the data goes there all the same" } else { "" };
    if order.policy == PolicyName::Agent {
        let used = order.weights.iter().rposition(|weight| *weight > 0).map_or(1, |last| last + 1);
        let weights: Vec<_> = order.weights[..used].iter().map(u32::to_string).collect();
        return format!("a policy file orders the weights {}{drained}{vain}", weights.join(","));
    }
    format!("a policy file orders the policy {policy}{drained}{vain}")
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::fs;
    use std::os::unix::fs::DirBuilderExt;

    use crate::publish::Peer;
    use crate::publish::records::tests::open_to;

    const WEIGHTS: OwnWeights = OwnWeights { speed: [3, 1, 0, 0, 0, 0, 0, 0], fixed: Some([1, 4, 0, 0, 0, 0, 0, 0]) };

    fn own() -> Order {
        WEIGHTS.order(PolicyName::Adaptive)
    }

    fn file(policy: Option<Policy>, drained: u8) -> Option<FileOrder> {
        Some(FileOrder { weights: None, policy, drained })
    }

    #[test]
    fn a_policy_of_the_file_brings_the_weights_that_the_end_knows() {
        assert_eq!(order(None, &own(), &WEIGHTS), own());
        let by = |policy| order(file(Some(policy), 0), &own(), &WEIGHTS);
        assert_eq!((by(Policy::Speed).policy, by(Policy::Speed).weights), (PolicyName::Speed, WEIGHTS.speed));
        assert_eq!(Some(by(Policy::Static).weights), WEIGHTS.fixed);
        assert_eq!(by(Policy::Adaptive), own());
        let without = OwnWeights { fixed: None, ..WEIGHTS };
        assert_eq!(order(file(Some(Policy::Static), 0), &own(), &without).policy, PolicyName::Adaptive);
    }

    #[test]
    fn a_drained_rail_leaves_the_policy_as_it_is() {
        let drained = order(file(None, 0b10), &own(), &WEIGHTS);
        assert_eq!((drained.policy, drained.allowed.bits()), (PolicyName::Adaptive, 0b1111_1101));
        let text = "a policy file orders the policy adaptive, without rail 1";
        assert_eq!(describe(&drained, false, RailSet::from_bits(0b11)), text);
        let text = format!("{text}: no other is up, so that the data goes there all the same");
        assert_eq!(describe(&drained, false, RailSet::from_bits(0b10)), text);
        let three = order(file(None, 0b1011), &own(), &WEIGHTS);
        let text = "a policy file orders the policy adaptive, without rails 0, 1 and 3";
        assert_eq!(describe(&three, false, RailSet::from_bits(0b100)), text);
    }

    #[test]
    fn changed_orders_are_said_in_three_lines_a_second_one_for_each_peer() {
        let folder = std::env::temp_dir().join(format!("railweave-orders-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::DirBuilder::new().mode(0o700).create(&folder).unwrap();
        let path = folder.join("policy");
        let write = |weights: &str| {
            fs::write(folder.join("new"), format!("railweave-policy 1\nttl forever\nany -> weights {weights}\n"))
                .unwrap();
            fs::rename(folder.join("new"), &path).unwrap();
        };
        let mut records = Records::new(Process::default(), Vec::new());
        for number in 0..10 {
            let peer = Peer { host: "node1".to_owned(), rank: number as i32 / 2, ..Peer::default() };
            open_to(peer, &mut records, number, &[0, 1], &[]);
        }
        let mut orders = Orders::new(Steering::new(&path, folder.join("none")));
        let follow = |orders: &mut Orders, records: &mut Records, weights: &str, millis: u64| {
            write(weights);
            assert_eq!(orders.poll(SystemTime::now()), (Vec::new(), true));
            assert_eq!(orders.apply(records, 0, 1_000_000 * millis), None);
            orders.lines(records, 1_000_000 * millis)
        };
        let line = |rank: u32, weights: &str| {
            format!("connections that send to node1 rank {rank} by ? (2): a policy file orders the weights {weights}")
        };
        let three = |weights: &str| {
            let mut lines = [0, 1, 2].map(|rank| line(rank, weights));
            lines[2] += " (so have the orders of 4 other connections changed)";
            lines
        };
        assert_eq!(follow(&mut orders, &mut records, "0,1", 10_000), three("0,1"));
        assert_eq!(follow(&mut orders, &mut records, "1,0", 10_500), [""; 0], "in the same second");
        assert_eq!(follow(&mut orders, &mut records, "1,1", 10_999), [""; 0]);
        assert_eq!(orders.lines(&mut records, 10_999_999_999), [""; 0]);
        assert_eq!(orders.lines(&mut records, 11_000_000_000), three("1,1"), "the order that holds");
        assert_eq!(orders.lines(&mut records, 13_000_000_000), [""; 0], "each order once");
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn weights_of_the_file_are_taken_as_they_are() {
        let given = FileOrder { weights: Some([80, 20, 0, 0, 0, 0, 0, 0]), policy: None, drained: 0 };
        let given = order(Some(given), &own(), &WEIGHTS);
        assert_eq!((given.policy, given.weights[..2].to_vec()), (PolicyName::Agent, vec![80, 20]));
        let both = RailSet::from_bits(0b11);
        assert_eq!(describe(&given, false, both), "a policy file orders the weights 80,20");
        assert!(describe(&own(), true, both).starts_with("no policy file"));
    }
}
