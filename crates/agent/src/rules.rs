//! The policy file of the agent: the orders of all its policies as one list of rules, of which the first that fits
//! holds.

use crate::config::is_name;
use crate::names::patterns;
use crate::operator::{MOST_RULES as MOST_ORDERED, Operator, OperatorRule};
use crate::series::GroupKey;
use railweave_telemetry::{LARGEST_POLICY, MOST_RULES, RAILS};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::fmt::Write;
use std::time::Duration;

/// The beginning of the second line, by which an agent knows the files of agents.
const MARK: &str = "# railweave agent";

/// The beginning of the second line of files that `railweave policy` wrote without an agent.
const COMMAND_MARK: &str = "# railweave policy";

/// The beginning of the lines that name ports which an operator has drained, so that the next agent knows of them.
const DRAINED: &str = "# drained ";

/// The beginning of the lines that have the rules of an operator, the newest first, for the next agent too.
const ORDERED: &str = "# ordered ";

/// The beginning of the lines that name ports which are sick, each with the reason.
const SICK: &str = "# sick ";

/// The beginning of the line that has the time of writing, in seconds since 1970, of a file that holds forever.
const WRITTEN: &str = "# written ";

/// The most lines of each kind that are looked at: a file may have any number, and an agent writes fewer.
const MOST_LINES: usize = 1024;

/// The most letters of a reason that is taken over.
const LONGEST_REASON: usize = 128;

/// The largest weight that is written.
const WHOLE: f64 = 1000.0;

/// The most bytes of rules: those of a file, less its first lines.
const MOST_BYTES: usize = LARGEST_POLICY as usize - (128 << 10);

/// The weights of a group's rails, by their numbers, from 0 to 1.
pub(crate) type GroupWeights = BTreeMap<GroupKey, Vec<(u8, f64)>>;

/// Everything that is ordered.
#[derive(Clone, Debug, Default)]
pub(crate) struct Orders<'a> {
    /// Rules that an operator has set, in their order. They come first.
    pub(crate) ordered: &'a [OperatorRule],
    /// Rules of the configuration, and of a script, in their order.
    pub(crate) rules: Vec<&'a str>,
    /// The weights of groups.
    pub(crate) weights: Cow<'a, GroupWeights>,
    /// The ports that are to be empty, sorted; each name stands for the ports that it covers.
    pub(crate) drained: Vec<&'a str>,
}

impl Orders<'_> {
    /// Refuses orders of an operator for which a policy file has no room.
    ///
    /// # Errors
    /// If it has none: a sentence.
    pub(crate) fn check_room(operator: &Operator, drained: Vec<&str>) -> Result<(), String> {
        // No rule of a file that nobody is named in depends on the user.
        let left_out = Orders { ordered: operator.rules(), drained, ..Orders::default() }.rules(0).1;
        if left_out == 0 {
            return Ok(());
        }
        Err(format!(
            "the policy file has no room for {left_out} of its rules; allowed: about 900 KB with all names of drained \
             ports; try fewer drained ports, or fewer rules"
        ))
    }

    /// Returns the rules for a user's folder, one line each, which are empty if nothing is ordered, and the number of
    /// rules that had no room.
    ///
    /// A rule that does not name rails itself comes twice if ports are drained: first for connections that have one of
    /// these, without it.
    ///
    /// A file that is too long orders nothing at all, so the last rules are left out of one that would be; but never
    /// the one that drains.
    pub(crate) fn rules(&self, user: u32) -> (String, usize) {
        let drained: Vec<String> = self.drained.iter().flat_map(|port| patterns(port)).collect();
        let drained = drained.join(",");
        let last = if drained.is_empty() { String::new() } else { format!("rail={drained} -> drain\n") };
        let ordered: Vec<String> = self.ordered.iter().map(OperatorRule::to_string).collect();
        // The file has these twice: as comments too.
        let comments: usize = ordered.iter().map(|rule| ORDERED.len() + rule.len() + 1).sum();
        let bytes = MOST_BYTES.saturating_sub(last.len() + comments);
        let mut lines = Lines { text: String::new(), rules: MOST_RULES - 1, bytes, left_out: 0 };
        for rule in ordered.iter().map(String::as_str).chain(self.rules.iter().copied()) {
            let own = rule.trim();
            match rule.split_once("->") {
                Some((matchers, actions))
                    if !drained.is_empty()
                        && !matchers.split_whitespace().any(|matcher| matcher.starts_with("rail=")) =>
                {
                    let (matchers, actions) = (matchers.trim(), actions.trim());
                    lines.add(&[&format!("{matchers} rail={drained} -> {actions} drain"), own]);
                }
                _ => lines.add(&[own]),
            }
        }
        // Groups whose job is not known would fit all jobs, so they come last.
        let (known, unknown): (Vec<_>, Vec<_>) =
            self.weights.iter().filter(|(key, _)| key.user == user).partition(|(key, _)| !key.job.is_empty());
        for (key, weights) in known.into_iter().chain(unknown) {
            let Some((matchers, weights)) = matchers(key).zip(words(weights)) else { continue };
            let own = format!("{matchers} -> weights {weights}");
            if drained.is_empty() {
                lines.add(&[&own]);
            } else {
                lines.add(&[&format!("{matchers} rail={drained} -> weights {weights} drain"), &own]);
            }
        }
        (lines.text + &last, lines.left_out)
    }
}

/// The lines of a policy file, as many as it may have.
struct Lines {
    text: String,
    /// The rules and bytes that there is still room for.
    rules: usize,
    bytes: usize,
    /// The rules that were left out.
    left_out: usize,
}

impl Lines {
    /// Adds rules that make sense together only; leaves them out if there is no room for all.
    fn add(&mut self, rules: &[&str]) {
        let bytes: usize = rules.iter().map(|rule| rule.len() + 1).sum();
        if rules.len() > self.rules || bytes > self.bytes {
            (self.rules, self.bytes) = (0, 0);
            self.left_out += 1;
            return;
        }
        (self.rules, self.bytes) = (self.rules - rules.len(), self.bytes - bytes);
        for rule in rules {
            self.text.push_str(rule);
            self.text.push('\n');
        }
    }
}

/// Returns the matchers of a group; `None` if one of its names cannot be written.
fn matchers(key: &GroupKey) -> Option<String> {
    let GroupKey { job, peer_host, device, .. } = key;
    if !is_name(peer_host) || !is_name(device) || !(job.is_empty() || is_name(job)) {
        return None;
    }
    let job = if job.is_empty() { String::new() } else { format!("job={job} ") };
    Some(format!("{job}peer={peer_host} device={device}"))
}

/// Returns the weights as a rule has them; `None` if all are 0, or if they are of more rails than a rule may name: a
/// wrong rule would spoil the whole file.
fn words(weights: &[(u8, f64)]) -> Option<String> {
    let last = weights.iter().map(|(rail, _)| *rail).max().filter(|last| usize::from(*last) < RAILS)?;
    let all: Vec<u32> = (0..=last)
        .map(|rail| weights.iter().find(|(number, _)| *number == rail).map_or(0.0, |(_, weight)| *weight))
        .map(|weight| (weight.clamp(0.0, 1.0) * WHOLE).round() as u32)
        .collect();
    let is_something = all.iter().any(|weight| *weight > 0);
    is_something.then(|| all.iter().map(u32::to_string).collect::<Vec<_>>().join(","))
}

/// The first lines of a policy file, but for its time.
pub(crate) struct Head<'a> {
    /// The second line.
    pub(crate) mark: String,
    /// The orders of an operator, for the next agent.
    pub(crate) operator: &'a Operator,
    /// The ports that are sick, each with the reason.
    pub(crate) sick: Vec<(&'a str, &'a str)>,
    /// The time to live, in seconds; `None` if the file holds until it is removed.
    pub(crate) ttl_s: Option<u64>,
}

impl Head<'_> {
    /// Returns the text of a policy file with these rules.
    pub(crate) fn file(&self, rules: &str, clock: Duration) -> String {
        let mut text = format!("railweave-policy 1\n{}\n", self.mark);
        for port in self.operator.drained() {
            writeln!(text, "{DRAINED}{port}").unwrap_or_default();
        }
        for rule in self.operator.rules() {
            writeln!(text, "{ORDERED}{rule}").unwrap_or_default();
        }
        for (port, reason) in self.sick.iter().filter(|(port, _)| is_name(port)) {
            writeln!(text, "{SICK}{port} {reason}").unwrap_or_default();
        }
        let written_s = clock.as_secs();
        let lines = match self.ttl_s {
            Some(ttl_s) => format!("written {written_s}\nttl {ttl_s}\n"),
            // Jobs would ignore it if the clock were set back.
            None => format!("{WRITTEN}{written_s}\nttl forever\n"),
        };
        text + &lines + rules
    }
}

/// Returns the second line of a file of an agent: its version, host and process say which.
pub(crate) fn mark(agent: &str) -> String {
    format!("{MARK} {agent} wrote this; it writes it again, so change none of it")
}

/// Returns the second line of a file that `railweave policy` wrote without an agent.
pub(crate) fn command_mark(who: &str) -> String {
    format!("{COMMAND_MARK} {who} wrote this; change it with railweave policy")
}

/// The knowledge that an agent leaves in its policy files to the next one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inherited {
    /// The time at which the file was written, in seconds since 1970.
    pub written_s: u64,
    /// The ports that an operator has drained.
    pub drained: Vec<String>,
    /// The rules that an operator has set, the newest first: those that are right, no two with the same matchers, and
    /// at most 250.
    pub rules: Vec<OperatorRule>,
    /// The ports that were sick, each with the reason: the end of a sentence that begins with the port.
    pub sick: Vec<(String, String)>,
}

/// The origin of a policy file that is already there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// An agent wrote it, which leaves this to the next one.
    Agent(Inherited),
    /// `railweave policy` wrote it without an agent, for jobs and for the next agent of the same user.
    Command(Inherited),
    /// Somebody else did: it is left alone.
    Other,
}

/// The writer of a policy file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writer {
    /// An agent.
    Agent,
    /// `railweave policy`, without an agent.
    Command,
    /// Somebody else.
    Other,
}

/// Returns the writer of a policy file, by its second line alone.
pub fn writer(text: &str) -> Writer {
    match text.lines().nth(1) {
        Some(line) if line.starts_with(MARK) => Writer::Agent,
        Some(line) if line.starts_with(COMMAND_MARK) => Writer::Command,
        _ => Writer::Other,
    }
}

/// Returns the origin of a policy file.
pub fn origin(text: &str) -> Origin {
    match writer(text) {
        Writer::Agent => Origin::Agent(inherited(text)),
        Writer::Command => Origin::Command(inherited(text)),
        Writer::Other => Origin::Other,
    }
}

/// Returns the time at which a policy file was written, in seconds since 1970, if it says one.
pub fn written_s(text: &str) -> Option<u64> {
    let number = |line: &str| line.trim().parse().ok();
    let words = text.lines().find_map(|line| number(line.trim().strip_prefix("written")?));
    words.or_else(|| text.lines().find_map(|line| number(line.strip_prefix(WRITTEN)?)))
}

fn inherited(text: &str) -> Inherited {
    let lines = |beginning| text.lines().filter_map(move |line| line.strip_prefix(beginning)).take(MOST_LINES);
    let drained = lines(DRAINED).filter(|port| is_name(port));
    let mut keys = HashSet::new();
    let rules = lines(ORDERED).filter_map(|line| OperatorRule::parse(line).ok());
    let rules = rules.filter(|rule| keys.insert(rule.key())).take(MOST_ORDERED).collect();
    let sick = lines(SICK).filter_map(|line| line.split_once(' '));
    let sick = sick.filter(|(port, reason)| is_name(port) && reason.len() <= LONGEST_REASON);
    Inherited {
        written_s: written_s(text).unwrap_or_default(),
        drained: drained.map(str::to_owned).collect(),
        rules,
        sick: sick.map(|(port, reason)| (port.to_owned(), reason.to_owned())).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use railweave_telemetry::{Order, Rules, Subject};

    fn group(job: &str) -> GroupKey {
        GroupKey { user: 7, job: job.into(), peer_host: "node2".into(), device: "eth0+eth1".into() }
    }

    fn decide(text: &str, job: &str, rails: &[&str]) -> Option<Order> {
        let rules = Rules::parse(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let subject = Subject { job, peer_host: "node2", device: "eth0+eth1", rails, ..Subject::default() };
        rules.decide(&subject)
    }

    fn weights(order: Option<Order>) -> Option<([u32; 2], u8)> {
        order.map(|order| (order.weights.map_or([0; 2], |weights| [weights[0], weights[1]]), order.drained))
    }

    #[test]
    fn drains_hold_together_with_weights_and_rules() {
        let orders = Orders {
            ordered: &[],
            rules: vec!["job=fixed -> weights 1,3", "job=own rail=1 -> only"],
            weights: Cow::Owned([(group("one"), vec![(0, 0.75), (1, 0.25)]), (group(""), vec![(1, 1.0)])].into()),
            drained: vec!["eth1", "eth2"],
        };
        let rules = orders.rules(7).0;
        let sick = vec![("eth2", "had 60 link errors in a minute")];
        let mut operator = Operator::default();
        operator.drain("eth1").unwrap();
        let head = Head { mark: mark("0.1.0 on node1"), operator: &operator, sick: sick.clone(), ttl_s: Some(30) };
        let text = head.file(&rules, Duration::from_secs(100));
        assert_eq!(weights(decide(&text, "fixed", &["eth0", "eth1"])), Some(([1, 3], 0b10)));
        assert_eq!(weights(decide(&text, "fixed", &["eth0", "eth3"])), Some(([1, 3], 0)));
        assert_eq!(weights(decide(&text, "own", &["eth0", "eth1"])), Some(([0, 0], 0b01)), "the operator's own");
        assert_eq!(weights(decide(&text, "one", &["eth0", "eth1"])), Some(([750, 250], 0b10)));
        assert_eq!(weights(decide(&text, "one", &["eth0", "eth3"])), Some(([750, 250], 0)));
        assert_eq!(weights(decide(&text, "two", &["eth0", "eth3"])), Some(([0, 1000], 0)), "the job is not known");
        assert_eq!(weights(decide(&text, "two", &["eth2", "eth1"])), Some(([0, 1000], 0)), "the last rails stay");
        assert_eq!(
            Orders { weights: Cow::Owned([(group("one"), vec![(0, 1.0)])].into()), ..Orders::default() }.rules(8).0,
            ""
        );
        assert_eq!(
            origin(&text),
            Origin::Agent(Inherited {
                written_s: 100,
                drained: vec!["eth1".to_owned()],
                rules: Vec::new(),
                sick: vec![("eth2".to_owned(), sick[0].1.to_owned())],
            })
        );
    }

    #[test]
    fn rules_without_room_are_counted() {
        let rule = format!("job={} -> weights 1,3", "j".repeat(400_000));
        let rules = vec![&*rule, &rule, &rule, &rule, "any -> policy speed"];
        let orders = Orders { rules, drained: vec!["eth1"], ..Orders::default() };
        let (text, left_out) = orders.rules(7);
        assert_eq!((text.lines().count(), left_out), (3, 4), "each is two, and the drain is there all the same");
    }

    #[test]
    fn the_comments_that_keep_rules_leave_room_for_them() {
        let rule = OperatorRule::parse(&format!("job={} -> policy speed", "j".repeat(1000))).unwrap();
        let ordered = vec![rule; 500];
        let (text, left_out) = Orders { ordered: &ordered, ..Orders::default() }.rules(7);
        assert_eq!(text.lines().count() + left_out, 500);
        assert!(left_out > 0 && text.len() + 500 * 1025 < MOST_BYTES, "{left_out}");
    }

    #[test]
    fn names_that_no_rule_can_have_are_left_out() {
        for name in ["a b", "a,b", "a*", "a->b", "a=b", "", "a\nany"] {
            let key = GroupKey { peer_host: name.into(), ..group("one") };
            let orders = Orders { weights: Cow::Owned([(key, vec![(0, 1.0)])].into()), ..Orders::default() };
            assert_eq!(orders.rules(7).0, "", "{name}");
        }
        let orders = Orders { weights: Cow::Owned([(group("one"), vec![(0, 0.0)])].into()), ..Orders::default() };
        assert_eq!(orders.rules(7).0, "", "weights that are all 0 are none");
        let orders =
            Orders { weights: Cow::Owned([(group("one"), vec![(0, 0.5), (8, 0.5)])].into()), ..Orders::default() };
        assert_eq!(orders.rules(7).0, "", "a rule has 8 rails");
    }

    #[test]
    fn a_reason_that_is_too_long_is_not_taken_over() {
        for (letters, count) in [(128, 1), (129, 0)] {
            let text = format!("railweave-policy 1\n{MARK}\n{SICK}eth1 {}\n", "r".repeat(letters));
            let Origin::Agent(before) = origin(&text) else { panic!("{text}") };
            assert_eq!(before.sick.len(), count);
        }
    }

    #[test]
    fn many_lines_are_looked_at_up_to_a_bound() {
        let line = |number: usize| format!("{ORDERED}peer=n{number} -> policy speed\n{DRAINED}eth{number}\n");
        let lines: String = (0..2 * MOST_LINES).map(line).collect();
        let again = format!("{ORDERED}peer=n0 -> policy static\n");
        let Origin::Command(before) = origin(&format!("railweave-policy 1\n{COMMAND_MARK}\n{lines}{again}")) else {
            panic!("it is no file of railweave policy")
        };
        assert_eq!((before.rules.len(), before.drained.len()), (MOST_ORDERED, MOST_LINES));
        assert_eq!(before.rules[0].actions, "policy speed", "the first with these matchers counts");
        let same = again.repeat(MOST_LINES);
        let text = format!("railweave-policy 1\n{MARK}\n{same}{ORDERED}any -> policy speed\n");
        let Origin::Agent(before) = origin(&text) else { panic!("it is no file of an agent") };
        assert_eq!(before.rules.len(), 1, "the last line is beyond the bound");
    }

    #[test]
    fn a_file_that_holds_forever_has_its_time_in_a_comment() {
        let operator = Operator::default();
        for (ttl_s, line) in [(None, "\n# written 100\nttl forever\n"), (Some(30), "\nwritten 100\nttl 30\n")] {
            let head = Head { mark: command_mark("0.1.0 on node1"), operator: &operator, sick: Vec::new(), ttl_s };
            let text = head.file("", Duration::from_secs(100));
            assert!(text.ends_with(line), "{text}");
            let Origin::Command(before) = origin(&text) else { panic!("{text}") };
            assert_eq!((before.written_s, written_s(&text)), (100, Some(100)));
        }
    }

    #[test]
    fn the_files_of_others_are_known() {
        for text in
            ["", "railweave-policy 1\nttl 30\n", "# railweave agent\n", "railweave-policy 1\n# a railweave agent"]
        {
            assert_eq!(origin(text), Origin::Other, "{text}");
        }
    }
}
