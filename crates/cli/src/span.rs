//! Times, as users write them.

use std::time::Duration;

/// The shortest and the longest period of `--every`.
const PERIODS: std::ops::RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(60);

/// The shortest and the longest time of `--away`.
const AWAY: std::ops::RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(60);

/// The shortest and the longest time of `--for`: those of the time to live of policy files.
const HOLDS: std::ops::RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(86_400);

/// The shortest and the longest time of `--wait`.
const WAITS: std::ops::RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(86_400);

/// The units of long times and their seconds.
const LONG_UNITS: [(&str, f64); 5] = [("ms", 1e-3), ("s", 1.0), ("", 1.0), ("min", 60.0), ("h", 3600.0)];

/// The units of a time and their seconds.
const UNITS: [(&str, f64); 3] = [("ms", 1e-3), ("s", 1.0), ("", 1.0)];

/// Parses a time: `100ms`, `1.5s`; a number without a unit is in seconds.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    parse_with(&UNITS, text)
        .ok_or_else(|| format!("{text:?} is not a time; allowed: a number with ms or s, such as 100ms or 1.5s"))
}

fn parse_with(units: &[(&str, f64)], text: &str) -> Option<Duration> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let (_, factor) = units.iter().find(|(name, _)| *name == &text[digits.len()..])?;
    let number: f64 = digits.parse().ok()?;
    Duration::try_from_secs_f64(number * factor).ok()
}

fn parse_long(text: &str) -> Result<Duration, String> {
    parse_with(&LONG_UNITS, text)
        .ok_or_else(|| format!("{text:?} is not a time; allowed: a number with s, min or h, such as 30s or 2h"))
}

/// Parses the time of `--for`, of which policy files keep whole seconds.
pub(crate) fn hold(text: &str) -> Result<Duration, String> {
    let hold = parse_long(text)?;
    if !HOLDS.contains(&hold) || hold.subsec_nanos() > 0 {
        return Err(format!("orders cannot hold for {hold:?}; allowed: whole seconds, 1s to 24h"));
    }
    Ok(hold)
}

/// Parses the time of `--wait`.
pub(crate) fn wait(text: &str) -> Result<Duration, String> {
    let wait = parse_long(text)?;
    if !WAITS.contains(&wait) {
        return Err(format!("nobody can wait for {wait:?}; allowed: 1ms to 24h"));
    }
    Ok(wait)
}

/// Parses the period of `--every`.
pub(crate) fn period(text: &str) -> Result<Duration, String> {
    let period = parse(text)?;
    if !PERIODS.contains(&period) {
        return Err(format!("a period of {period:?} is not possible; allowed: 10ms to 60s"));
    }
    Ok(period)
}

/// Parses the time of `--away`.
pub(crate) fn away(text: &str) -> Result<Duration, String> {
    let away = parse(text)?;
    if !AWAY.contains(&away) {
        return Err(format!("a rail cannot be away for {away:?}; allowed: 100ms to 60s"));
    }
    Ok(away)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_users_write_them() {
        for (text, ms) in [("100ms", 100), ("1.5s", 1500), ("2", 2000), ("0s", 0), ("0.01", 10)] {
            assert_eq!(parse(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", "ms", "1m", "-1s", "1 s", "nan", "inf", "1e400", "soon"] {
            let error = parse(text).unwrap_err();
            assert!(error.contains("is not a time; allowed: a number with ms or s"), "{error}");
        }
    }

    #[test]
    fn a_period_has_10_ms_to_60_s() {
        for text in ["10ms", "60", "0.5s"] {
            period(text).unwrap();
        }
        for text in ["9ms", "60.1s", "0"] {
            let error = period(text).unwrap_err();
            assert!(error.contains("is not possible; allowed: 10ms to 60s"), "{error}");
        }
    }
    #[test]
    fn a_rail_is_away_for_100_ms_to_60_s() {
        away("100ms").unwrap();
        away("60").unwrap();
        assert!(away("99ms").unwrap_err().contains("allowed: 100ms to 60s"));
    }

    #[test]
    fn orders_hold_for_whole_seconds_up_to_a_day() {
        for (text, seconds) in [("1", 1), ("90s", 90), ("1.5min", 90), ("24h", 86_400)] {
            assert_eq!(hold(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for text in ["0", "24.1h", "500ms", "1.5s", "1d", ""] {
            assert!(hold(text).unwrap_err().contains("allowed: "), "{text}");
        }
        wait("10ms").unwrap();
        assert!(wait("0").unwrap_err().contains("allowed: 1ms to 24h"));
    }
}
