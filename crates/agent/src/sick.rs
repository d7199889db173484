//! The policy `avoid-sick`: ports whose links have errors are kept empty until they have been well for long.

use crate::config::SickConfig;
use crate::ports::Signs;
use std::time::Duration;

/// The time for which a link has to be slow until that counts: a link that comes up may do so in steps.
const SLOW_FOR: Duration = Duration::from_secs(10);

/// The most relapses that count: each makes the time for which the port has to be well twice as long.
const MOST_RELAPSES: u32 = 5;

/// The health of one port.
#[derive(Clone, Debug, Default)]
pub(crate) struct Health {
    /// The last reason for which it counted as sick, and the last look at which one held.
    sick: Option<(String, Duration)>,
    /// True if an agent before this one said so, and this one has not looked yet.
    is_inherited: bool,
    /// The time at which it was last used again, and the number of times that it was sick again soon after that.
    healed: Option<Duration>,
    relapses: u32,
    /// The number of times that counters of its errors had become full when it was last well, or first looked at.
    fills: Option<u64>,
}

impl Health {
    /// Takes over the reason that an agent before this one knew: the port has to be well for the whole time again.
    /// Returns false if it is known to be sick anyway.
    pub(crate) fn inherit(&mut self, reason: &str, up: Duration) -> bool {
        let is_new = self.sick.is_none();
        if is_new {
            (self.sick, self.is_inherited) = (Some((reason.to_owned(), up)), true);
        }
        is_new
    }

    /// Looks at the signs of a port.
    pub(crate) fn look(&mut self, config: &SickConfig, signs: &Signs, up: Duration) {
        if std::mem::take(&mut self.is_inherited)
            && let Some((_, at)) = &mut self.sick
        {
            *at = up;
        }
        // A cable that only errs with traffic on it would otherwise be used again every five minutes, for months.
        let leave = Duration::from_secs(config.leave_s).saturating_mul(1 << self.relapses);
        let reason = reason(config, signs);
        let is_well = self.sick.is_none() && reason.is_none();
        let fills = *self.fills.get_or_insert(signs.fills);
        if is_well {
            self.fills = Some(signs.fills);
        }
        if let Some(reason) = reason {
            if let Some(healed) = self.healed.take() {
                let is_relapse = up.saturating_sub(healed) < leave;
                self.relapses = if is_relapse { MOST_RELAPSES.min(self.relapses + 1) } else { 0 };
            }
            self.sick = Some((reason, up));
        } else if let Some((_, at)) = &mut self.sick {
            if signs.is_full && signs.fills > fills {
                // Errors that the counter cannot count any more may still come.
                *at = up;
            } else if up.saturating_sub(*at) >= leave {
                (self.sick, self.healed) = (None, Some(up));
            }
        }
    }

    /// Returns the reason why the port is to be avoided: the end of a sentence that begins with the port.
    pub(crate) fn reason(&self) -> Option<&str> {
        self.sick.as_ref().map(|(reason, _)| &**reason)
    }
}

fn reason(config: &SickConfig, signs: &Signs) -> Option<String> {
    if signs.errors >= config.errors_per_min {
        return Some(format!("had {} link errors in a minute", signs.errors));
    }
    if signs.downs >= config.downs {
        return Some(format!("went down {} times in five minutes", signs.downs));
    }
    let is_slow = config.slow && signs.slow_for.is_some_and(|time| time >= SLOW_FOR);
    is_slow.then(|| "is slower or narrower than it was".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_port_stays_sick_until_it_was_well_for_long() {
        let config = SickConfig { leave_s: 100, ..SickConfig::default() };
        let mut health = Health::default();
        let mut look = |second: u32, signs: Signs| {
            health.look(&config, &signs, second * SECOND);
            health.reason().map(str::to_owned)
        };
        let errors = |errors| Signs { errors, ..Signs::default() };
        assert_eq!(look(1, errors(59)), None);
        assert_eq!(look(2, errors(60)).unwrap(), "had 60 link errors in a minute");
        assert!(look(50, errors(0)).is_some());
        assert!(look(101, errors(59)).is_some(), "99 s");
        assert_eq!(look(102, errors(59)), None);
        let downs = Signs { downs: 3, ..Signs::default() };
        assert_eq!(look(202, downs).unwrap(), "went down 3 times in five minutes");
        assert_eq!(look(302, errors(0)), None);
    }

    #[test]
    fn a_counter_that_errors_have_filled_makes_no_port_well() {
        let config = SickConfig { leave_s: 100, ..SickConfig::default() };
        let is_sick = |looks: &[(u32, u64, u64, bool)]| {
            let mut health = Health::default();
            for (second, errors, fills, is_full) in looks {
                let signs = Signs { errors: *errors, fills: *fills, is_full: *is_full, ..Signs::default() };
                health.look(&config, &signs, *second * SECOND);
            }
            health.reason().is_some()
        };
        assert!(is_sick(&[(1, 0, 0, false), (2, 60, 1, true), (300, 0, 1, true), (399, 0, 1, false)]));
        assert!(!is_sick(&[(1, 0, 0, false), (2, 60, 1, true), (300, 0, 1, true), (400, 0, 1, false)]));
        assert!(!is_sick(&[(1, 0, 0, true), (2, 60, 0, true), (102, 0, 0, true)]), "it was full before");
        assert!(!is_sick(&[(1, 0, 1, true), (2, 60, 1, true), (102, 0, 1, true)]));
        assert!(is_sick(&[(1, 0, 1, true), (2, 60, 2, true), (102, 0, 2, true)]), "another one");
        assert!(!is_sick(&[(1, 60, 1, true), (101, 0, 1, true)]), "it filled before avoid-sick was on");
    }

    #[test]
    fn a_port_that_is_sick_again_and_again_is_avoided_for_longer_each_time() {
        let config = SickConfig { leave_s: 100, ..SickConfig::default() };
        let (mut health, mut second) = (Health::default(), 0);
        let mut avoided = |well: u32| {
            second += well;
            health.look(&config, &Signs { errors: 60, ..Signs::default() }, second * SECOND);
            let begin = second;
            while health.reason().is_some() {
                second += 1;
                health.look(&config, &Signs::default(), second * SECOND);
            }
            second - begin
        };
        assert_eq!([avoided(1), avoided(99), avoided(199), avoided(1), avoided(1)], [100, 200, 400, 800, 1600]);
        assert_eq!([avoided(1), avoided(1)], [3200, 3200]);
        assert_eq!(avoided(3200), 100, "it was well for as long");
    }

    #[test]
    fn a_slow_link_counts_after_a_while_and_if_it_may() {
        let slow = |time| Signs { slow_for: Some(time), ..Signs::default() };
        for (is_on, time, expected) in [(true, 9, false), (true, 10, true), (false, 3600, false)] {
            let mut health = Health::default();
            health.look(&SickConfig { slow: is_on, ..SickConfig::default() }, &slow(time * SECOND), SECOND);
            assert_eq!(health.reason().is_some(), expected, "{time} s");
        }
    }
}
