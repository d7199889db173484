//! The policy `avoid-congestion`: a port whose data meets congestion keeps a smaller part of its share.
//!
//! That the marks end may be due to the smaller part. So each time that congestion comes back after a step up, it takes
//! longer until the next one; and a port that sends nothing proves little.

use crate::config::CongestionConfig;
use std::time::Duration;

/// The part of its share that a port keeps with each step while it is congested.
const STEP_DOWN: f64 = 0.7;

/// The time between two steps down: the network needs some to show the effect of the last one.
const DOWN_EVERY: Duration = Duration::from_secs(3);

/// The part of its share that a port gets back with each step, and the time between two steps.
const STEP_UP: f64 = 0.1;
const UP_EVERY: Duration = Duration::from_secs(5);

/// The largest factor by which the time until a step up grows.
const MOST_PATIENCE: u32 = 32;

/// The part of a time without marks that counts if the port sends nothing. Not nothing: it may have no share left.
const SILENT: u32 = 10;

/// The time without marks, besides twice that until a step up, after which a port's past is forgotten.
const LONG: Duration = Duration::from_secs(300);

/// The part of the marks below which a congested port counts as free.
const FREE: f64 = 0.1;

/// The congestion of one port.
#[derive(Clone, Debug)]
pub(crate) struct Congestion {
    /// The part of its share that it keeps: 1 if it is free.
    factor: f64,
    /// The time since which it has shown marks without a pause, and the time for which it has shown none.
    marked_since: Option<Duration>,
    free_for: Duration,
    stepped: Duration,
    /// True if the last step was one up.
    rose: bool,
    /// The factor by which the time until a step up has grown.
    patience: u32,
    looked: Option<Duration>,
}

impl Default for Congestion {
    fn default() -> Self {
        Self {
            factor: 1.0,
            marked_since: None,
            free_for: Duration::ZERO,
            stepped: Duration::ZERO,
            rose: false,
            patience: 1,
            looked: None,
        }
    }
}

impl Congestion {
    /// Looks at the marks of a port per second; `sends` is true if jobs send over it.
    pub(crate) fn look(&mut self, config: &CongestionConfig, marks: f64, sends: bool, up: Duration) {
        self.marked_since = (marks >= config.marks_per_s).then(|| self.marked_since.unwrap_or(up));
        let is_free = marks <= config.marks_per_s * FREE;
        let period = self.looked.replace(up).map_or(Duration::ZERO, |looked| up.saturating_sub(looked));
        let counts = if sends { period } else { period / SILENT };
        self.free_for = if is_free { self.free_for.saturating_add(counts) } else { Duration::ZERO };
        let leave = Duration::from_secs(config.leave_s) * self.patience;
        let since_step = up.saturating_sub(self.stepped);
        let is_congested = self.factor < 1.0;
        let enter = Duration::from_secs(config.enter_s.saturating_sub(1));
        let is_marked = self.marked_since.is_some_and(|since| up.saturating_sub(since) >= enter);
        if is_marked && (!is_congested || since_step >= DOWN_EVERY) {
            if std::mem::take(&mut self.rose) {
                self.patience = (self.patience * 2).min(MOST_PATIENCE);
            }
            self.factor = (self.factor * STEP_DOWN).max(config.least);
            self.stepped = up;
        } else if is_congested && self.free_for >= leave && since_step >= UP_EVERY {
            self.factor = (self.factor + STEP_UP).min(1.0);
            (self.stepped, self.rose) = (up, true);
        } else if !is_congested && self.free_for >= leave * 2 + LONG {
            (self.rose, self.patience) = (false, 1);
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
        play_sending(true, marks)
    }

    fn play_sending(sends: bool, marks: &[(u32, f64)]) -> Vec<f64> {
        let config = CongestionConfig::default();
        let mut port = Congestion::default();
        let mut second = 0;
        let mut factors = Vec::new();
        for (seconds, marks) in marks {
            for _ in 0..*seconds {
                second += 1;
                port.look(&config, *marks, sends, Duration::from_secs(second));
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
        assert_eq!(play(&[(3, 100.0), (9, 0.0), (1, 0.0), (5, 0.0), (60, 0.0)]), [0.7, 0.7, 0.8, 0.9, 1.0]);
    }

    #[test]
    fn congestion_that_comes_back_is_given_more_time() {
        let factors = play(&[(3, 100.0), (10, 0.0), (3, 100.0), (19, 0.0), (1, 0.0), (3, 100.0), (39, 0.0), (1, 0.0)]);
        assert_eq!(factors, [0.7, 0.8, 0.56, 0.56, 0.66, 0.46, 0.46, 0.56]);
        let mut long = vec![(3, 100.0), (10, 0.0), (3, 100.0), (500, 0.0), (3, 100.0), (9, 0.0), (1, 0.0)];
        assert_eq!(play(&long)[3..], [1.0, 0.7, 0.7, 0.8], "long ago");
        long[3] = (200, 0.0);
        assert_eq!(play(&long)[3..], [1.0, 0.7, 0.7, 0.7]);
        assert_eq!(play(&vec![(3, 100.0); 1000])[999], 0.1);
    }

    #[test]
    fn silence_proves_little() {
        assert_eq!(play_sending(false, &[(3, 100.0), (99, 0.0), (1, 0.0), (600, 0.0)]), [0.7, 0.7, 0.8, 1.0]);
    }

    #[test]
    fn a_burst_is_not_congestion_and_a_few_marks_hold_it() {
        assert_eq!(play(&[(2, 1e6), (1, 0.0), (2, 1e6), (1, 0.0)]), [1.0; 4]);
        assert_eq!(play(&[(3, 100.0), (600, 11.0), (9, 0.0), (600, 11.0)]), [0.7; 4], "neither marked nor free");
    }
}
