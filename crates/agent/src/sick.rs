//! The policy `avoid-sick`: ports whose links have errors are kept empty until they have been well for long.

use crate::config::SickConfig;
use crate::ports::Signs;
use std::time::Duration;

/// The time for which a link has to be slow until that counts: a link that comes up may do so in steps.
const SLOW_FOR: Duration = Duration::from_secs(10);

/// The health of one port.
#[derive(Clone, Debug, Default)]
pub(crate) struct Health {
    /// The last reason for which it counted as sick, and the last look at which one held.
    sick: Option<(String, Duration)>,
    /// True if an agent before this one said so, and this one has not looked yet.
    is_inherited: bool,
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
        if let Some(reason) = reason(config, signs) {
            self.sick = Some((reason, up));
        } else if self.sick.as_ref().is_some_and(|(_, at)| up.saturating_sub(*at) >= seconds(config.leave_s)) {
            self.sick = None;
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

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
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
        assert_eq!(look(103, downs).unwrap(), "went down 3 times in five minutes");
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
