//! The steps that disturb a run.

use serde::Deserialize;

/// A step during a run.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Step {
    /// Its time after the start of both ranks in seconds, 0 to 3600.
    pub(crate) after_s: f64,
    kill: Option<usize>,
    loss: Option<Loss>,
    down: Option<CableEnd>,
    up: Option<CableEnd>,
    rate: Option<Rate>,
    silence: Option<Silence>,
    restore: Option<usize>,
    shell: Option<Shell>,
}

/// The kinds of step.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Deed {
    /// Kills the rank in this guest.
    Kill(usize),
    /// Makes a cable lose packets in both directions.
    Loss(Loss),
    /// Pulls a cable at one end, whose port is down then.
    Down(CableEnd),
    /// Plugs it in again.
    Up(CableEnd),
    /// Makes a cable drop packets, which nothing reports.
    Silence(Silence),
    /// Gives a cable another rate, in both directions; what waits in it stays.
    Rate(Rate),
    /// Restores a cable to its original state, with both its ports up.
    Restore(usize),
    /// Runs a command line in a guest; it must succeed.
    Shell(Shell),
}

/// A shell command line in one guest, as a step.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Shell {
    /// The guest.
    pub(crate) guest: usize,
    /// The command line.
    pub(crate) line: String,
}

/// The loss of packets on a cable.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Loss {
    /// The cable.
    pub(crate) cable: usize,
    /// The percentage of packets that are lost, 0 to 100.
    pub(crate) percent: f64,
}

/// The packets that a cable drops.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Silence {
    /// The cable.
    pub(crate) cable: usize,
    /// The guest whose packets are dropped; without it, those of both ends are.
    pub(crate) from: Option<usize>,
    /// The kind of packets; without it, all of them.
    #[serde(default)]
    pub(crate) only: Packets,
}

/// Kinds of packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Packets {
    /// All packets, of every protocol.
    #[default]
    All,
    /// Those that only acknowledge: packets of TCP with hardly any data, and RoCE's acknowledgements.
    Acks,
}

/// The rate of a cable.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rate {
    /// The cable, which has a rate.
    pub(crate) cable: usize,
    /// The new rate in Mbit/s, 0.1 to 100000.
    pub(crate) mbit: f64,
}

/// The port of a guest into which a cable is plugged.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CableEnd {
    /// The cable.
    pub(crate) cable: usize,
    /// The guest.
    pub(crate) guest: usize,
}

/// Ports that go down and up at random.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Flaps {
    /// The time of the first possible step after the start of all ranks, in seconds.
    from_s: f64,
    /// The time when all ports are up for good, at most 3600.
    until_s: f64,
    /// The shortest and the longest time that a port is up in between, in seconds.
    up_s: [f64; 2],
    /// The same for down.
    down_s: [f64; 2],
    /// The number that decides the course.
    seed: u64,
}

impl Flaps {
    /// Returns the steps of all these ports, in order of time.
    ///
    /// # Errors
    /// If a time is impossible: a sentence.
    pub(crate) fn steps(&self, ports: &[CableEnd]) -> Result<Vec<Step>, String> {
        let Self { from_s, until_s, up_s, down_s, seed } = *self;
        let is_range = |[least, most]: [f64; 2]| least >= 0.1 && least <= most && most <= 3600.0;
        if !(is_range(up_s) && is_range(down_s) && from_s >= 0.0 && from_s < until_s && until_s <= 3600.0) {
            let allowed = "from_s before until_s, up to 3600, and up_s and down_s each from 0.1, the shorter first";
            return Err(format!("flaps with these times are not possible; allowed: {allowed}"));
        }
        let mut steps = Vec::new();
        for (index, port) in ports.iter().enumerate() {
            // The generator of Steele, Lea and Flood (splitmix64).
            let mut state = seed.wrapping_add((index as u64 + 1) << 32);
            let mut between = move |[least, most]: [f64; 2]| {
                state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
                let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
                least + (most - least) * ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1u64 << 53) as f64
            };
            let mut now = from_s + between([0.0, up_s[1]]);
            while now < until_s {
                steps.push(Step { after_s: now, down: Some(*port), ..Step::default() });
                now = (now + between(down_s)).min(until_s);
                steps.push(Step { after_s: now, up: Some(*port), ..Step::default() });
                now += between(up_s);
            }
        }
        steps.sort_by(|a, b| a.after_s.total_cmp(&b.after_s));
        Ok(steps)
    }
}

impl Step {
    /// Returns the step's deed.
    ///
    /// # Errors
    /// If there is not exactly one deed, which `Scenario::parse` refuses.
    pub(crate) fn deed(&self) -> Result<Deed, String> {
        let Self { after_s, kill, loss, down, up, rate, silence, restore, shell } = self.clone();
        let all = [
            kill.map(Deed::Kill),
            loss.map(Deed::Loss),
            down.map(Deed::Down),
            up.map(Deed::Up),
            rate.map(Deed::Rate),
            silence.map(Deed::Silence),
            restore.map(Deed::Restore),
            shell.map(Deed::Shell),
        ];
        let mut given = all.into_iter().flatten();
        match (given.next(), given.next()) {
            (Some(deed), None) => Ok(deed),
            _ => {
                let deeds = "kill, loss, down, up, rate, silence, restore and shell";
                Err(format!("the step after {after_s} s must have exactly one of {deeds}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flaps_are_random_but_always_the_same_and_leave_every_port_up() {
        let flaps = |seed| Flaps { from_s: 10.0, until_s: 100.0, up_s: [1.0, 12.0], down_s: [0.2, 4.0], seed };
        let ports = [(0, 0), (0, 1), (1, 0), (1, 1)].map(|(cable, guest)| CableEnd { cable, guest });
        let steps = flaps(7).steps(&ports).unwrap();
        let times = |steps: &[Step]| steps.iter().map(|step| step.after_s.to_bits()).collect::<Vec<_>>();
        assert_eq!(times(&steps), times(&flaps(7).steps(&ports).unwrap()));
        assert_ne!(times(&steps), times(&flaps(8).steps(&ports).unwrap()));
        assert!(steps.is_sorted_by(|a, b| a.after_s <= b.after_s) && steps.len() > 40, "{}", steps.len());
        for port in ports {
            let deeds = steps.iter().map(|step| (step.after_s, step.deed().unwrap()));
            let mut last = (10.0, true);
            for (at, deed) in deeds.filter(|(_, deed)| [Deed::Down(port), Deed::Up(port)].contains(deed)) {
                let is_up = deed == Deed::Up(port);
                assert!(is_up != last.1 && at >= last.0 && at <= 100.0, "{deed:?} at {at}");
                last = (at, is_up);
            }
            assert!(last.1, "{port:?} is up at the end");
        }
    }

    #[test]
    fn flaps_without_time_are_refused() {
        let flaps = Flaps { from_s: 10.0, until_s: 10.0, up_s: [1.0, 2.0], down_s: [1.0, 2.0], seed: 0 };
        assert!(flaps.steps(&[]).unwrap_err().contains("from_s before until_s"));
        let flaps = Flaps { until_s: 20.0, up_s: [0.0, 2.0], ..flaps };
        assert!(flaps.steps(&[]).unwrap_err().contains("each from 0.1"));
    }
}
