//! The policy `avoid-congestion`: a port whose data meets congestion keeps a smaller part of its share.

use crate::config::CongestionConfig;
use std::time::Duration;

/// The part of its share that a port keeps with each step while it is congested.
const STEP_DOWN: f64 = 0.7;

/// The time between two steps down: the network needs some to show the effect of the last one.
const DOWN_EVERY: Duration = Duration::from_secs(3);

/// The part of its share that a port gets back with each step, and the time between two steps.
const STEP_UP: f64 = 0.1;
const UP_EVERY: Duration = Duration::from_secs(5);

/// The part of the marks below which a congested port counts as free.
const FREE: f64 = 0.1;

/// The congestion of one port.
#[derive(Clone, Debug)]
pub(crate) struct Congestion {
    /// The part of its share that it keeps: 1 if it is free.
    factor: f64,
    /// The time since which it has shown marks without a pause, and the time since which it has shown none.
    marked_since: Option<Duration>,
    free_since: Option<Duration>,
    stepped: Duration,
}

impl Default for Congestion {
    fn default() -> Self {
        Self { factor: 1.0, marked_since: None, free_since: None, stepped: Duration::ZERO }
    }
}

impl Congestion {
    /// Looks at the marks of a port per second.
    pub(crate) fn look(&mut self, config: &CongestionConfig, marks: f64, up: Duration) {
        self.marked_since = (marks >= config.marks_per_s).then(|| self.marked_since.unwrap_or(up));
        let is_free = marks <= config.marks_per_s * FREE;
        self.free_since = is_free.then(|| self.free_since.unwrap_or(up));
        let lasts = |since: Option<Duration>, time: Duration| since.is_some_and(|at| up.saturating_sub(at) >= time);
        let since_step = up.saturating_sub(self.stepped);
        let is_congested = self.factor < 1.0;
        let enter = Duration::from_secs(config.enter_s.saturating_sub(1));
        if lasts(self.marked_since, enter) && (!is_congested || since_step >= DOWN_EVERY) {
            self.factor = (self.factor * STEP_DOWN).max(config.least);
            self.stepped = up;
        } else if is_congested && lasts(self.free_since, Duration::from_secs(config.leave_s)) && since_step >= UP_EVERY
        {
            self.factor = (self.factor + STEP_UP).min(1.0);
            self.stepped = up;
        }
    }

    /// Returns the part of its share that the port keeps, 0 to 1.
    pub(crate) fn factor(&self) -> f64 {
        self.factor
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn play(marks: &[(u32, f64)]) -> Vec<f64> {
        let config = CongestionConfig::default();
        let mut port = Congestion::default();
        let mut second = 0;
        let mut factors = Vec::new();
        for (seconds, marks) in marks {
            for _ in 0..*seconds {
                second += 1;
                port.look(&config, *marks, Duration::from_secs(second));
            }
            factors.push((port.factor() * 100.0).round() / 100.0);
        }
        factors
    }

    #[test]
    fn a_port_gives_its_share_away_in_steps_and_gets_it_back_slowly() {
        assert_eq!(play(&[(2, 100.0), (1, 100.0), (3, 100.0), (3, 100.0)]), [1.0, 0.7, 0.49, 0.34]);
        assert_eq!(play(&[(60, 1e6)]), [0.1], "it keeps the least part");
        // Ten seconds without marks, then a tenth each five seconds.
        assert_eq!(play(&[(3, 100.0), (10, 0.0), (1, 0.0), (5, 0.0), (60, 0.0)]), [0.7, 0.7, 0.8, 0.9, 1.0]);
    }

    #[test]
    fn a_burst_is_not_congestion_and_a_few_marks_hold_it() {
        assert_eq!(play(&[(2, 1e6), (1, 0.0), (2, 1e6), (1, 0.0)]), [1.0; 4]);
        assert_eq!(play(&[(3, 100.0), (600, 11.0), (9, 0.0), (600, 11.0)]), [0.7; 4], "neither marked nor free");
    }
}
