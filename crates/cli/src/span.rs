//! Times, as users write them.

use std::time::Duration;

/// The shortest and the longest period of `--every`.
const PERIODS: std::ops::RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(60);

/// The shortest and the longest time of `--away`.
const AWAY: std::ops::RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(60);

/// The units of a time and their seconds.
const UNITS: [(&str, f64); 3] = [("ms", 1e-3), ("s", 1.0), ("", 1.0)];

/// Parses a time: `100ms`, `1.5s`; a number without a unit is in seconds.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a time; allowed: a number with ms or s, such as 100ms or 1.5s");
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let (_, factor) = UNITS.iter().find(|(name, _)| *name == &text[digits.len()..]).ok_or_else(wrong)?;
    let number: f64 = digits.parse().map_err(|_| wrong())?;
    Duration::try_from_secs_f64(number * factor).map_err(|_| wrong())
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
}
