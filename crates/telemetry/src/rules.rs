//! The language of the policy file: docs/policy.md describes it.

use crate::snapshot::Policy;

/// The first line.
pub(crate) const FIRST_LINE: &str = "railweave-policy 1";

/// The most rules.
pub const MOST_RULES: usize = 4096;

/// The most rails of a connection.
pub const RAILS: usize = 8;

/// The largest weight.
const MOST_WEIGHT: u32 = 1_000_000;

/// The longest time to live, in seconds.
const MOST_TTL: u64 = 86_400;

/// The longest piece of a line that an error repeats, in characters.
const SHOWN_CHARS: usize = 80;

/// A connection, as rules see it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Subject<'a> {
    /// The id of the job; empty if unknown.
    pub job: &'a str,
    /// The rank of this process in the job, if known.
    pub rank: Option<u32>,
    /// The name of the peer's host.
    pub peer_host: &'a str,
    /// The peer's rank in the job, if known.
    pub peer_rank: Option<u32>,
    /// The name of the device.
    pub device: &'a str,
    /// The names of this end's ports, in the order of the rails' numbers: at most 8 count.
    pub rails: &'a [&'a str],
}

/// The order for a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Order {
    /// The weights of the rails, by their numbers; not all are 0.
    pub weights: Option<[u32; RAILS]>,
    /// The policy that decides the weights: static, speed or adaptive. Never together with `weights`.
    pub policy: Option<Policy>,
    /// The rails that carry no data, as a mask: bit `n` is rail `n`. Never all rails of the connection.
    pub drained: u8,
}

/// A line that is wrong. Its text is one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {thing}: \"{value}\" {reason}; allowed: {allowed}; try {advice}")]
pub struct RuleError {
    line: usize,
    thing: &'static str,
    value: String,
    reason: &'static str,
    allowed: &'static str,
    advice: &'static str,
}

/// A text that a name must equal, or begin with.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pattern {
    text: String,
    is_beginning: bool,
}

impl Pattern {
    fn new(text: &str) -> Self {
        let beginning = text.strip_suffix('*');
        Self { text: beginning.unwrap_or(text).to_owned(), is_beginning: beginning.is_some() }
    }

    /// Returns true if the pattern fits a name. An empty name is not known, and fits nothing.
    fn fits(&self, name: &str) -> bool {
        !name.is_empty() && if self.is_beginning { name.starts_with(&self.text) } else { name == self.text }
    }
}

/// A rail in a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
enum RailPattern {
    Number(usize),
    Name(Pattern),
}

/// The use of the rails that a rule names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Drain,
    Only,
}

/// A rule. An empty list of patterns fits everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Rule {
    jobs: Vec<Pattern>,
    ranks: Vec<(u32, u32)>,
    peers: Vec<Pattern>,
    devices: Vec<Pattern>,
    rails: Vec<RailPattern>,
    weights: Option<[u32; RAILS]>,
    policy: Option<Policy>,
    usage: Option<Use>,
}

impl Rule {
    /// Returns the order for a connection that the rule fits.
    fn order(&self, subject: &Subject) -> Option<Order> {
        let fits =
            |patterns: &[Pattern], name| patterns.is_empty() || patterns.iter().any(|pattern| pattern.fits(name));
        let fits_rank = self.ranks.is_empty()
            || subject.rank.is_some_and(|rank| self.ranks.iter().any(|(first, last)| (*first..=*last).contains(&rank)));
        let named = subject.rails.iter().take(RAILS).enumerate().fold(0_u8, |mask, (number, name)| {
            let is_named = self.rails.iter().any(|pattern| match pattern {
                RailPattern::Number(wanted) => *wanted == number,
                RailPattern::Name(pattern) => pattern.fits(name),
            });
            mask | (u8::from(is_named) << number)
        });
        let fits_rails = self.rails.is_empty() || named != 0;
        if !(fits(&self.jobs, subject.job)
            && fits_rank
            && fits(&self.peers, subject.peer_host)
            && fits(&self.devices, subject.device)
            && fits_rails)
        {
            return None;
        }
        let all = (0..subject.rails.len().min(RAILS)).fold(0_u8, |mask, number| mask | (1 << number));
        let drained = match self.usage {
            None => 0,
            Some(Use::Drain) => named,
            Some(Use::Only) => all & !named,
        };
        let drained = if drained == all { 0 } else { drained };
        Some(Order { weights: self.weights, policy: self.policy, drained })
    }
}

/// A policy file that is right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// The time of writing, in seconds since 1970.
    pub(crate) written_s: Option<u64>,
    /// The time for which the rules hold after that, in seconds; `None` if forever.
    pub(crate) ttl_s: Option<u64>,
    rules: Vec<Rule>,
}

impl Rules {
    /// Returns the order of the first rule that fits.
    pub fn decide(&self, subject: &Subject) -> Option<Order> {
        self.rules.iter().find_map(|rule| rule.order(subject))
    }

    /// Returns the last second in which the rules hold, since 1970; `None` if they hold until they are removed.
    pub fn end_s(&self) -> Option<u64> {
        self.written_s.zip(self.ttl_s).map(|(written_s, ttl_s)| written_s.saturating_add(ttl_s))
    }

    /// Returns true if both give the same orders while they hold.
    pub(crate) fn orders_as(&self, other: &Self) -> bool {
        self.rules == other.rules
    }

    /// Reads the text of a policy file.
    ///
    /// # Errors
    /// If any line of it is wrong: the first that is.
    pub fn parse(text: &str) -> Result<Self, RuleError> {
        let mut written_s = None;
        let mut ttl_s = None;
        let mut rules = Vec::new();
        let mut is_begun = false;
        let lines = text.lines().map(str::trim).enumerate();
        for (index, line) in lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')) {
            let line = Line { number: index + 1, text: line };
            if !is_begun {
                line.first()?;
                is_begun = true;
            } else if let Some(value) = line.value("written") {
                line.once(written_s.is_some(), "written")?;
                written_s = Some(line.written(value)?);
            } else if let Some(value) = line.value("ttl") {
                line.once(ttl_s.is_some(), "ttl")?;
                ttl_s = Some(line.ttl(value)?);
            } else {
                if rules.len() == MOST_RULES {
                    return Err(line.error("rules", line.text, "is one too many", "up to 4096 rules", "fewer"));
                }
                rules.push(line.rule()?);
            }
        }
        let end = Line { number: text.lines().count().max(1), text: "" };
        let end_error = |thing, advice| Err(end.error(thing, "", "is missing at the end of the file", advice, advice));
        match (is_begun, ttl_s) {
            (false, _) => end_error("the first line", FIRST_LINE),
            (_, None) => end_error("ttl", "a line such as `ttl 30` or `ttl forever`"),
            (_, Some(Some(_))) if written_s.is_none() => end_error("written", "a line such as `written 1790000000`"),
            (_, Some(ttl_s)) => Ok(Self { written_s, ttl_s, rules }),
        }
    }
}

/// A line that is not empty, without the spaces around it.
#[derive(Clone, Copy)]
struct Line<'a> {
    number: usize,
    text: &'a str,
}

impl<'a> Line<'a> {
    fn error(
        &self,
        thing: &'static str,
        value: &str,
        reason: &'static str,
        allowed: &'static str,
        advice: &'static str,
    ) -> RuleError {
        let mut shown: String = value.chars().take(SHOWN_CHARS).flat_map(char::escape_debug).collect();
        if value.chars().nth(SHOWN_CHARS).is_some() {
            shown.push('…');
        }
        RuleError { line: self.number, thing, value: shown, reason, allowed, advice }
    }

    fn first(&self) -> Result<(), RuleError> {
        if self.text == FIRST_LINE {
            return Ok(());
        }
        let is_version = self.text.starts_with("railweave-policy ");
        let reason = if is_version { "is a version that is not known" } else { "does not say that this is a policy" };
        Err(self.error("the first line", self.text, reason, FIRST_LINE, FIRST_LINE))
    }

    /// Returns the rest of a line that begins with the word.
    fn value(&self, word: &str) -> Option<&'a str> {
        let rest = self.text.strip_prefix(word)?;
        (rest.is_empty() || rest.starts_with(char::is_whitespace)).then(|| rest.trim())
    }

    fn once(&self, is_repeated: bool, thing: &'static str) -> Result<(), RuleError> {
        if is_repeated {
            return Err(self.error(thing, self.text, "is said twice", "one such line", "removing one"));
        }
        Ok(())
    }

    fn written(&self, value: &str) -> Result<u64, RuleError> {
        let allowed = "seconds since 1970";
        value.parse().map_err(|_| self.error("written", value, "is not a time", allowed, "the output of `date +%s`"))
    }

    fn ttl(&self, value: &str) -> Result<Option<u64>, RuleError> {
        if value == "forever" {
            return Ok(None);
        }
        match value.parse() {
            Ok(seconds) if (1..=MOST_TTL).contains(&seconds) => Ok(Some(seconds)),
            _ => {
                let allowed = "seconds from 1 to 86400, or forever";
                Err(self.error("ttl", value, "is not a time to live", allowed, "ttl 30"))
            }
        }
    }

    /// Reads a rule: matchers, an arrow, actions.
    fn rule(&self) -> Result<Rule, RuleError> {
        const ALLOWED: &str = "`MATCHERS -> ACTIONS`, `written SECONDS` or `ttl SECONDS`";
        const EXAMPLE: &str = "peer=node3 -> weights 80,20";
        let Some((matchers, actions)) = self.text.split_once("->") else {
            return Err(self.error("rule", self.text, "has no arrow", ALLOWED, EXAMPLE));
        };
        let mut rule = Rule::default();
        let mut matchers = matchers.split_whitespace().peekable();
        if matchers.next_if_eq(&"any").is_none() && matchers.peek().is_none() {
            return Err(self.error("rule", self.text, "fits nothing", "any, or matchers such as peer=node3", EXAMPLE));
        }
        for matcher in matchers {
            self.matcher(&mut rule, matcher)?;
        }
        let mut words = actions.split_whitespace();
        if words.clone().next().is_none() {
            return Err(self.error("rule", self.text, "does nothing", ACTIONS, EXAMPLE));
        }
        while let Some(word) = words.next() {
            self.action(&mut rule, word, &mut words)?;
        }
        if rule.weights.is_some() && rule.policy.is_some() {
            let reason = "has both weights and a policy, which makes weights of its own";
            return Err(self.error("rule", self.text, reason, "one of the two", EXAMPLE));
        }
        match (rule.rails.is_empty(), rule.usage) {
            (true, Some(_)) => {
                let allowed = "drain and only together with rail=";
                Err(self.error("rule", self.text, "does not say which rail", allowed, "rail=1 -> drain"))
            }
            (false, None) => {
                let allowed = "rail= together with drain or only";
                Err(self.error("rule", self.text, "names a rail and does nothing with it", allowed, "rail=1 -> drain"))
            }
            _ => Ok(rule),
        }
    }

    fn matcher(&self, rule: &mut Rule, matcher: &str) -> Result<(), RuleError> {
        const ALLOWED: &str = "any, or job=, rank=, peer=, device= and rail=, each once";
        let wrong = |reason| self.error("matcher", matcher, reason, ALLOWED, "peer=node3");
        let Some((key, values)) = matcher.split_once('=') else {
            return Err(wrong("has no ="));
        };
        if values.split(',').any(str::is_empty) {
            return Err(self.error(
                "matcher",
                matcher,
                "has an empty value",
                "values with commas between",
                "rank=0,4-7",
            ));
        }
        let names = || values.split(',').map(Pattern::new).collect();
        let is_repeated = match key {
            "job" => !std::mem::replace(&mut rule.jobs, names()).is_empty(),
            "peer" => !std::mem::replace(&mut rule.peers, names()).is_empty(),
            "device" => !std::mem::replace(&mut rule.devices, names()).is_empty(),
            "rank" => {
                let ranks: Option<Vec<_>> = values.split(',').map(ranks).collect();
                let Some(ranks) = ranks else {
                    return Err(self.error(
                        "rank",
                        values,
                        "is not a list of ranks",
                        "numbers and ranges",
                        "rank=0,4-7",
                    ));
                };
                !std::mem::replace(&mut rule.ranks, ranks).is_empty()
            }
            "rail" => {
                let rails: Option<Vec<_>> = values.split(',').map(rail).collect();
                let Some(rails) = rails else {
                    let allowed = "numbers from 0 to 7, and names of ports";
                    return Err(self.error("rail", values, "has a number that is too large", allowed, "rail=1"));
                };
                !std::mem::replace(&mut rule.rails, rails).is_empty()
            }
            _ => return Err(wrong("is not known")),
        };
        if is_repeated { Err(wrong("is there twice")) } else { Ok(()) }
    }

    fn action<'b>(
        &self,
        rule: &mut Rule,
        word: &str,
        words: &mut impl Iterator<Item = &'b str>,
    ) -> Result<(), RuleError> {
        let is_repeated = match word {
            "weights" => {
                let value = words.next().unwrap_or_default();
                let Some(weights) = weights(value) else {
                    let allowed = "1 to 8 whole numbers from 0 to 1000000 with commas between, not all 0";
                    return Err(self.error("weights", value, "is not a list of weights", allowed, "weights 80,20"));
                };
                rule.weights.replace(weights).is_some()
            }
            "policy" => {
                let value = words.next().unwrap_or_default();
                let known = [Policy::Static, Policy::Speed, Policy::Adaptive];
                let Some(policy) = known.into_iter().find(|policy| policy.word() == value) else {
                    let allowed = "static, speed or adaptive";
                    return Err(self.error("policy", value, "is not a policy", allowed, "policy adaptive"));
                };
                rule.policy.replace(policy).is_some()
            }
            "drain" => rule.usage.replace(Use::Drain).is_some(),
            "only" => rule.usage.replace(Use::Only).is_some(),
            _ => return Err(self.error("action", word, "is not known", ACTIONS, "weights 80,20")),
        };
        if is_repeated {
            let allowed = "each action once, and one of drain and only";
            return Err(self.error("action", word, "contradicts an earlier one", allowed, "a rule for each"));
        }
        Ok(())
    }
}

const ACTIONS: &str = "weights LIST, policy NAME, drain or only";

/// Reads a rank, or a range of them.
fn ranks(text: &str) -> Option<(u32, u32)> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let range = (first.parse().ok()?, last.parse().ok()?);
    (range.0 <= range.1).then_some(range)
}

/// Reads a rail: digits alone are its number.
fn rail(text: &str) -> Option<RailPattern> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        return text.parse().ok().filter(|number| *number < RAILS).map(RailPattern::Number);
    }
    Some(RailPattern::Name(Pattern::new(text)))
}

/// Reads the weights. Rails past the end of the list have weight 0.
fn weights(text: &str) -> Option<[u32; RAILS]> {
    let mut weights = [0; RAILS];
    for (index, item) in text.split(',').enumerate() {
        let weight = item.parse().ok().filter(|weight| *weight <= MOST_WEIGHT)?;
        *weights.get_mut(index)? = weight;
    }
    weights.iter().any(|weight| *weight > 0).then_some(weights)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUBJECT: Subject = Subject {
        job: "4711",
        rank: Some(5),
        peer_host: "node3",
        peer_rank: None,
        device: "mlx5_0",
        rails: &["eth0", "eth1"],
    };

    fn parse(rules: &str) -> Result<Rules, RuleError> {
        Rules::parse(&format!("railweave-policy 1\nttl forever\n{rules}\n"))
    }

    fn decide(rules: &str) -> Option<Order> {
        parse(rules).unwrap_or_else(|error| panic!("{rules}: {error}")).decide(&SUBJECT)
    }

    fn wrong(rules: &str) -> String {
        let error = parse(rules).expect_err(rules).to_string();
        assert!(error.starts_with("line ") && error.contains("; allowed: ") && error.contains("; try "), "{error}");
        assert_eq!(error.lines().count(), 1);
        error
    }

    #[test]
    fn each_matcher_fits_what_it_names_and_nothing_else() {
        for (fits, other) in [
            ("any", "peer=node4"),
            ("job=4711", "job=47"),
            ("job=1,47*", "job=1,48*"),
            ("rank=0,4-7", "rank=0-4,6"),
            ("rank=3-5", "rank=6-7"),
            ("rank=5-6", "rank=2-4"),
            ("peer=node3", "peer=node"),
            ("device=mlx5*", "device=mlx4*"),
            ("peer=node3 rank=5 device=mlx5_0 job=4711", "peer=node3 rank=5 device=mlx5_1 job=4711"),
        ] {
            assert!(decide(&format!("{fits} -> policy speed")).is_some(), "{fits}");
            assert_eq!(decide(&format!("{other} -> policy speed")), None, "{other}");
        }
        let unknown = Subject { rank: None, job: "", ..SUBJECT };
        for matcher in ["rank=0-4294967295", "job=*"] {
            let rules = parse(&format!("{matcher} -> policy speed")).unwrap();
            assert!(rules.decide(&SUBJECT).is_some() && rules.decide(&unknown).is_none(), "{matcher}");
        }
    }

    #[test]
    fn the_first_rule_that_fits_holds() {
        let order = decide("peer=node4 -> weights 1\npeer=node3 -> weights 80,20\nany -> policy speed");
        assert_eq!(order.unwrap().weights, Some([80, 20, 0, 0, 0, 0, 0, 0]));
        let order = decide("any -> policy speed\npeer=node3 -> weights 80,20").unwrap();
        assert_eq!((order.policy, order.weights), (Some(Policy::Speed), None));
    }

    #[test]
    fn rails_are_drained_by_number_and_by_name() {
        let drained = |rule| decide(rule).map(|order| order.drained);
        assert_eq!(drained("rail=1 -> drain"), Some(0b10));
        assert_eq!(drained("rail=eth0* -> drain"), Some(0b01));
        assert_eq!(drained("rail=1 -> only"), Some(0b01));
        // The connection has no such rail, so the rule does not fit.
        assert_eq!(drained("rail=2 -> only"), None);
        assert_eq!(drained("rail=10.0.0.1 -> drain"), None);
        // A drain never leaves a connection without a rail.
        assert_eq!(drained("rail=0,1 -> drain"), Some(0));
        let order = decide("rail=0 -> only weights 3,5").unwrap();
        assert_eq!((order.drained, order.weights), (0b10, Some([3, 5, 0, 0, 0, 0, 0, 0])));
    }

    #[test]
    fn each_mistake_is_named_with_its_line_and_remedy() {
        for (rules, words) in [
            ("peer=node3", "line 3: rule: \"peer=node3\" has no arrow"),
            ("-> drain", "fits nothing"),
            ("any ->", "does nothing"),
            ("any -> weights 80;20", "line 3: weights: \"80;20\" is not a list of weights"),
            ("any -> weights", "weights: \"\" is not"),
            ("any -> weights 0,0", "not all 0"),
            ("any -> weights 1,2,3,4,5,6,7,8,9", "1 to 8 whole numbers"),
            ("any -> weights 1000001", "from 0 to 1000000"),
            ("any -> policy agent", "policy: \"agent\" is not a policy; allowed: static, speed or adaptive"),
            ("any -> drain", "does not say which rail"),
            ("rail=1 -> policy speed", "names a rail and does nothing with it"),
            ("rail=8 -> drain", "rail: \"8\" has a number that is too large"),
            ("rail=1 -> drain only", "contradicts an earlier one"),
            ("any -> weights 1 policy speed", "has both weights and a policy"),
            ("any -> weights 1 weights 2", "contradicts"),
            ("any -> faster", "action: \"faster\" is not known"),
            ("host=a -> policy speed", "matcher: \"host=a\" is not known"),
            ("peer -> policy speed", "has no ="),
            ("peer=a peer=b -> policy speed", "is there twice"),
            ("peer=a, -> policy speed", "has an empty value"),
            ("rank=7-4 -> policy speed", "rank: \"7-4\" is not a list of ranks"),
            ("rank=x -> policy speed", "is not a list of ranks"),
            ("ttl 5", "ttl: \"ttl 5\" is said twice"),
        ] {
            assert!(wrong(rules).contains(words), "{rules}: {}", wrong(rules));
        }
    }

    #[test]
    fn the_first_line_and_the_heartbeat_are_required() {
        let error = |text: &str| Rules::parse(text).unwrap_err().to_string();
        assert!(error("").contains("the first line: \"\" is missing"));
        assert!(
            error("railweave-policy 2\nttl 3\n")
                .contains("line 1: the first line: \"railweave-policy 2\" is a version")
        );
        assert!(error("any -> policy speed").contains("does not say that this is a policy"));
        assert!(error("railweave-policy 1\nany -> policy speed").contains("line 2: ttl: \"\" is missing"));
        assert!(error("railweave-policy 1\nttl 3").contains("written: \"\" is missing"));
        assert!(error("railweave-policy 1\nttl 0").contains("ttl: \"0\" is not a time to live"));
        assert!(error("railweave-policy 1\nttl 86401").contains("is not a time to live"));
        assert!(error("railweave-policy 1\nwritten now").contains("written: \"now\" is not a time"));
        let rules = Rules::parse("# a comment\n\n railweave-policy 1\nwritten 7\nttl 3\n").unwrap();
        assert_eq!((rules.written_s, rules.ttl_s), (Some(7), Some(3)));
    }
}
