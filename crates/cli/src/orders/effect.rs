//! The effect of rules on the connections that telemetry files show: a pure function of both.

use railweave_agent::Standing;
use railweave_telemetry::{Connection, Direction, Policy, RAILS, Rail, RuleError, Rules, Snapshot, Subject};
use std::collections::{BTreeMap, HashMap};

/// The most rails that are judged: a user's files may name any number, and the agent follows this many too.
const MOST_RAILS: usize = 100_000;

/// The whole, of which weights are parts.
const WHOLE: f64 = 1_000_000.0;

/// The weights of second rails by the peers' ranks: the table of docs/policy.md.
pub(crate) type Table<'a> = &'a dyn Fn(u32) -> Option<f32>;

/// Everything that steers connections at one time: rules, and the table for connections that no rule fits.
#[derive(Clone, Copy, Default)]
pub(crate) struct Steering<'a> {
    pub(crate) rules: Option<&'a Rules>,
    pub(crate) table: Option<Table<'a>>,
}

/// Reads rules, one line each, without the first lines of a file.
///
/// # Errors
/// If one is wrong.
pub(crate) fn rules(lines: &str) -> Result<Rules, RuleError> {
    Rules::parse(&format!("railweave-policy 1\nttl forever\n{lines}\n"))
}

/// Returns the rules that drain a port; `None` if no rule can name it.
pub(crate) fn drain(port: &str) -> Option<Rules> {
    let mut standing = Standing::default();
    standing.drain(port).ok()?;
    rules(&standing.orders()).ok()
}

/// Returns true if rules drain a port of this name wherever another could take over.
pub(crate) fn covers(rules: &Rules, port: &str) -> bool {
    let subject = Subject { rails: &[port, ""], ..Subject::default() };
    rules.decide(&subject).is_some_and(|order| order.drained == 1)
}

/// Returns true if a drain of this name drains a port.
pub(crate) fn stands_for(name: &str, port: &str) -> bool {
    name == port || drain(name).is_some_and(|rules| covers(&rules, port))
}

/// The part of a connection's data that a rail has to carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Part {
    /// None: it is drained.
    Drained,
    /// Everything: all other rails are drained.
    All,
    /// A part by weights, in millionths.
    Weight(u32),
    /// The one that this policy gives it: `static`, `speed` or `adaptive`.
    Policy(&'static str),
    /// The one that the settings of its process give it: nothing is ordered.
    Settings,
}

impl Part {
    /// Returns the words for people.
    pub(crate) fn words(self) -> String {
        match self {
            Self::Drained => "drained".to_owned(),
            Self::All => "all".to_owned(),
            Self::Weight(part) => format!("share {} %", (f64::from(part) / WHOLE * 1000.0).round() / 10.0),
            Self::Policy(policy) => format!("policy {policy}"),
            Self::Settings => "own settings".to_owned(),
        }
    }

    /// Returns the part from 0 to 1, if the order says it.
    pub(crate) fn ratio(self) -> Option<f64> {
        match self {
            Self::Drained => Some(0.0),
            Self::All => Some(1.0),
            Self::Weight(part) => Some(f64::from(part) / WHOLE),
            Self::Policy(_) | Self::Settings => None,
        }
    }

    /// Returns the word for the origin of the part.
    pub(crate) fn by(self) -> &'static str {
        match self {
            Self::Drained | Self::All => "drain",
            Self::Weight(_) => "weights",
            Self::Policy(_) => "policy",
            Self::Settings => "settings",
        }
    }
}

/// Connections of a job to one host by one device in one direction.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Group {
    /// The id of the job; empty if unknown.
    pub(crate) job: String,
    /// The name of the peer's host.
    pub(crate) peer_host: String,
    /// The name of the device; empty if unknown.
    pub(crate) device: String,
    /// `send`, `receive` or `unknown`.
    pub(crate) direction: &'static str,
}

/// Rails of a group that have one number, one port and the same orders.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) group: Group,
    /// The number in the connections.
    pub(crate) rail: u8,
    /// The name of this end's port; empty if unknown.
    pub(crate) port: String,
    pub(crate) before: Part,
    pub(crate) after: Part,
}

/// The rails at a place.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Rails {
    /// Their number, which is that of their connections.
    pub(crate) count: u32,
    /// The sum of the shares that they have now, and the number of those that are known.
    shares: (f64, u32),
}

impl Rails {
    /// Returns the part of the data that they carry now, from 0 to 1, if it is known.
    pub(crate) fn share(&self) -> Option<f64> {
        (self.shares.1 > 0).then(|| self.shares.0 / f64::from(self.shares.1))
    }
}

/// A process whose connections follow its settings, and no files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unsteered {
    pub(crate) host: String,
    pub(crate) pid: u32,
    pub(crate) rank: Option<u32>,
    pub(crate) job: String,
    /// The number of its connections that do, and the policy that they follow.
    pub(crate) connections: u32,
    pub(crate) policy: &'static str,
}

/// The effects of orders.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    /// All rails.
    pub(crate) places: BTreeMap<Place, Rails>,
    /// The processes that follow no files.
    pub(crate) unsteered: Vec<Unsteered>,
    /// The connections that go on using a port that is to be drained, because they have no other or because another
    /// rule fits them first.
    pub(crate) kept: BTreeMap<Group, u32>,
    /// The rails that were not judged, because there are too many.
    pub(crate) left_out: usize,
    judged: usize,
}

impl Effects {
    /// Adds the connections of a process, which are steered by `before` and will be by `after`. `drain` has the rules
    /// that drain the ports in question, if there are any.
    pub(crate) fn add(&mut self, snapshot: &Snapshot, before: Steering, after: Steering, drain: Option<&Rules>) {
        let state = &snapshot.state;
        let mut rails: HashMap<u32, Vec<&Rail>> = HashMap::new();
        for rail in &state.rails {
            if self.judged == MOST_RAILS {
                self.left_out += 1;
            } else {
                self.judged += 1;
                rails.entry(rail.connection).or_default().push(rail);
            }
        }
        let mut unsteered: Option<Unsteered> = None;
        for connection in &state.connections {
            let Some(rails) = rails.get(&connection.number) else { continue };
            let device = connection.device.and_then(|device| state.devices.get(device as usize));
            let device = device.map_or("", |device| &device.name);
            let mut names = [""; RAILS];
            let mut count = 0;
            for rail in rails.iter().filter(|rail| usize::from(rail.number) < RAILS) {
                names[usize::from(rail.number)] = state.port_of(rail).map_or("", |port| &port.name);
                count = count.max(usize::from(rail.number) + 1);
            }
            let subject = Subject {
                job: &state.process.job,
                rank: state.process.rank,
                peer_host: &connection.peer_host,
                peer_rank: connection.peer_rank,
                device,
                rails: &names[..count],
            };
            if let Some(policy) = own_policy(connection, before.decide(&subject).1) {
                let process = &state.process;
                let entry = unsteered.get_or_insert_with(|| Unsteered {
                    host: process.host.clone(),
                    pid: process.pid,
                    rank: process.rank,
                    job: process.job.clone(),
                    connections: 0,
                    policy,
                });
                entry.connections += 1;
            }
            self.add_connection(connection, rails, &subject, [before, after], drain);
        }
        self.unsteered.extend(unsteered);
    }

    fn add_connection(
        &mut self,
        connection: &Connection,
        rails: &[&Rail],
        subject: &Subject,
        [before, after]: [Steering; 2],
        drain: Option<&Rules>,
    ) {
        let group = Group {
            job: subject.job.to_owned(),
            peer_host: subject.peer_host.to_owned(),
            device: subject.device.to_owned(),
            direction: connection.direction.word(),
        };
        let (before, after) = (before.decide(subject).0, after.decide(subject).0);
        let mut is_kept = false;
        for rail in rails.iter().filter(|rail| usize::from(rail.number) < subject.rails.len()) {
            let number = usize::from(rail.number);
            let port = subject.rails[number];
            is_kept |= after[number] != Part::Drained && drain.is_some_and(|drain| covers(drain, port));
            let place = Place {
                group: group.clone(),
                rail: rail.number,
                port: port.to_owned(),
                before: before[number],
                after: after[number],
            };
            let entry = self.places.entry(place).or_default();
            entry.count += 1;
            if let Some(share) = rail.share.filter(|_| connection.direction == Direction::Send) {
                entry.shares = (entry.shares.0 + f64::from(share) / 65_536.0, entry.shares.1 + 1);
            }
        }
        if is_kept {
            *self.kept.entry(group).or_default() += 1;
        }
    }

    /// Returns the places where something changes.
    pub(crate) fn changes(&self) -> impl Iterator<Item = (&Place, &Rails)> {
        self.places.iter().filter(|(place, _)| place.before != place.after)
    }
}

impl Steering<'_> {
    /// Returns the part of each rail, and the policy that a rule orders.
    fn decide(&self, subject: &Subject) -> ([Part; RAILS], Option<Policy>) {
        let count = subject.rails.len().min(RAILS);
        let Some(order) = self.rules.and_then(|rules| rules.decide(subject)) else {
            return (self.table_parts(subject).unwrap_or([Part::Settings; RAILS]), None);
        };
        let is_drained = |rail: usize| order.drained & (1 << rail) != 0;
        let used: Vec<usize> = (0..count).filter(|rail| !is_drained(*rail)).collect();
        let sum: u64 = order.weights.map_or(0, |weights| used.iter().map(|rail| u64::from(weights[*rail])).sum());
        let parts = std::array::from_fn(|rail| match (order.weights, order.policy) {
            _ if is_drained(rail) => Part::Drained,
            _ if used.len() == 1 && count > 1 => Part::All,
            // Weights of rails that are all drained say nothing about the others.
            (Some(weights), _) if sum > 0 => {
                Part::Weight((f64::from(weights[rail]) / sum as f64 * WHOLE).round() as u32)
            }
            (_, Some(policy)) => Part::Policy(policy.word()),
            _ => Part::Settings,
        });
        (parts, order.policy)
    }

    /// Returns the parts that the table orders.
    fn table_parts(&self, subject: &Subject) -> Option<[Part; RAILS]> {
        let second = self.table?(subject.peer_rank.filter(|_| subject.rails.len() > 1)?)?;
        let second = (f64::from(second.clamp(0.0, 1.0)) * WHOLE).round() as u32;
        let mut parts = [Part::Weight(0); RAILS];
        (parts[0], parts[1]) = (Part::Weight(WHOLE as u32 - second), Part::Weight(second));
        Some(parts)
    }
}

/// Returns the policy of a connection that follows no files, as far as its file shows: it is `static` or `speed`, and
/// no rule says so. `None` if it follows them.
fn own_policy(connection: &Connection, ordered: Option<Policy>) -> Option<&'static str> {
    let is_own = matches!(connection.policy, Policy::Static | Policy::Speed) && ordered != Some(connection.policy);
    is_own.then(|| connection.policy.word())
}

#[cfg(test)]
mod tests {
    use super::*;
    use railweave_telemetry::{Device, Port, Process, State};

    /// A process of job 4711 with connections to node8 of these policies over eth0 and eth1, and one to node9 over eth1
    /// alone.
    fn snapshot(policies: &[Policy]) -> Snapshot {
        let to = |number: usize, peer: &str, policy| Connection {
            number: number as u32,
            direction: Direction::Send,
            policy,
            device: Some(0),
            peer_rank: Some(9),
            peer_host: peer.into(),
            ..Connection::default()
        };
        let rail = |connection: usize, number: u8, port| Rail {
            connection: connection as u32,
            number,
            port: Some(port),
            share: Some(if number == 0 { 49_152 } else { 16_384 }),
            ..Rail::default()
        };
        let last = policies.len();
        let mut connections: Vec<_> =
            policies.iter().enumerate().map(|(number, policy)| to(number, "node8", *policy)).collect();
        connections.push(to(last, "node9", Policy::Adaptive));
        let mut rails: Vec<_> = (0..last).flat_map(|number| [rail(number, 0, 0), rail(number, 1, 1)]).collect();
        rails.push(rail(last, 0, 1));
        let port = |name: &str| Port { name: name.into(), ..Port::default() };
        let state = State {
            process: Process { job: "4711".into(), rank: Some(3), pid: 17, ..Process::default() },
            devices: vec![Device { name: "eth0+eth1".into(), ..Device::default() }],
            connections,
            rails,
            ports: vec![port("eth0@10.0.0.1"), port("eth1@10.0.1.1")],
        };
        Snapshot { state, ..Snapshot::default() }
    }

    const DRAIN: &str = "rail=eth1,eth1@* -> drain";

    fn steered<'a>(rules: &'a Rules) -> Steering<'a> {
        Steering { rules: Some(rules), table: None }
    }

    fn effects(policies: &[Policy], before: &str, after: &str) -> Effects {
        let (before, after, drain) = (rules(before).unwrap(), rules(after).unwrap(), rules(DRAIN).unwrap());
        let mut effects = Effects::default();
        effects.add(&snapshot(policies), steered(&before), steered(&after), Some(&drain));
        effects
    }

    /// Returns the changes as words: peer, rail and port, before and after, connections.
    fn changes(effects: &Effects) -> Vec<String> {
        let line = |(place, rails): (&Place, &Rails)| {
            let Place { group, rail, port, before, after } = place;
            format!("{} {rail} {port}: {} -> {} ({})", group.peer_host, before.words(), after.words(), rails.count)
        };
        effects.changes().map(line).collect()
    }

    #[test]
    fn a_drain_leaves_rails_without_another_as_they_are() {
        let effects = effects(&[Policy::Adaptive; 2], "", DRAIN);
        assert_eq!(
            changes(&effects),
            ["node8 0 eth0@10.0.0.1: own settings -> all (2)", "node8 1 eth1@10.0.1.1: own settings -> drained (2)"]
        );
        let kept: Vec<_> = effects.kept.iter().map(|(group, count)| (&*group.peer_host, *count)).collect();
        assert_eq!(kept, [("node9", 1)]);
        assert!(effects.unsteered.is_empty());
        let share: Vec<_> = effects.changes().map(|(_, rails)| rails.share()).collect();
        assert_eq!(share, [Some(0.75), Some(0.25)]);
    }

    #[test]
    fn weights_are_parts_of_the_rails_that_are_used() {
        let weights = "job=4711 peer=node8 -> weights 60,20,20";
        let effects = effects(&[Policy::Agent], weights, &format!("rank=4 -> policy speed\n{weights}"));
        assert!(changes(&effects).is_empty(), "another rank: {:?}", changes(&effects));
        let parts: Vec<_> = effects.places.keys().map(|place| place.before.words()).collect();
        assert_eq!(parts, ["share 75 %", "share 25 %", "own settings"]);
        let ratios: Vec<_> = effects.places.keys().map(|place| place.before.ratio()).collect();
        assert_eq!(ratios, [Some(0.75), Some(0.25), None]);
    }

    #[test]
    fn rules_whose_weights_are_all_on_drained_rails_leave_the_others_something() {
        let effects = effects(&[Policy::Agent], "", "rail=0 -> weights 1 drain");
        assert_eq!(changes(&effects)[0], "node8 0 eth0@10.0.0.1: own settings -> drained (1)");
        assert_eq!(changes(&effects)[1], "node8 1 eth1@10.0.1.1: own settings -> all (1)");
    }

    #[test]
    fn a_process_that_follows_no_files_is_named_unless_a_rule_says_the_same() {
        let policies = [Policy::Static, Policy::Static, Policy::Adaptive];
        let none = effects(&policies, "", DRAIN);
        assert_eq!(none.unsteered.len(), 1);
        let process = &none.unsteered[0];
        assert_eq!((process.pid, process.connections, process.policy), (17, 2, "static"));
        assert!(effects(&policies, "any -> policy static", DRAIN).unsteered.is_empty());
        assert_eq!(effects(&policies, "any -> policy speed", DRAIN).unsteered[0].connections, 2);
    }

    #[test]
    fn the_table_holds_where_no_rule_fits() {
        let rules = rules("peer=node9 -> policy adaptive").unwrap();
        let table = |rank: u32| (rank == 9).then_some(0.25);
        let by_table = Steering { rules: Some(&rules), table: Some(&table) };
        let mut effects = Effects::default();
        effects.add(&snapshot(&[Policy::Agent]), by_table, Steering::default(), None);
        assert_eq!(
            changes(&effects),
            [
                "node8 0 eth0@10.0.0.1: share 75 % -> own settings (1)",
                "node8 1 eth1@10.0.1.1: share 25 % -> own settings (1)",
                "node9 0 eth1@10.0.1.1: policy adaptive -> own settings (1)",
            ]
        );
        assert!(effects.kept.is_empty(), "no drain is asked about");
    }

    #[test]
    fn files_may_hold_any_numbers() {
        let mut wild = snapshot(&[Policy::Agent]);
        for (index, rail) in wild.state.rails.iter_mut().enumerate() {
            (rail.number, rail.port, rail.share) = (255 - index as u8, Some(u16::MAX), Some(u32::MAX));
        }
        wild.state.connections.iter_mut().for_each(|connection| connection.device = Some(u32::MAX));
        let rules = rules("any -> weights 0,0,0,0,0,0,0,1").unwrap();
        let mut effects = Effects::default();
        effects.add(&wild, steered(&rules), Steering::default(), Some(&rules));
        assert!(effects.places.is_empty());
        let mut many = snapshot(&[Policy::Agent]);
        many.state.rails = vec![many.state.rails[0].clone(); MOST_RAILS + 7];
        effects.add(&many, steered(&rules), Steering::default(), None);
        assert_eq!(effects.left_out, 10);
    }

    #[test]
    fn a_drain_covers_the_ports_that_its_name_stands_for() {
        let drain = rules(DRAIN).unwrap();
        assert!(covers(&drain, "eth1") && covers(&drain, "eth1@10.0.1.1"));
        assert!(!covers(&drain, "eth10") && !covers(&drain, ""));
        assert!(rules("any -> dance").is_err());
    }
}
