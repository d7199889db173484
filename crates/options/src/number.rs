//! Numbers as people write them: plain, in bytes, in seconds. Every error is the end of a sentence that begins with the
//! value.

use std::time::Duration;

use crate::allowed::{HANDSHAKE_TIMEOUT, PEER_TIMEOUT};

/// Parses a switch: 0 or 1.
pub(crate) fn switch(text: &str) -> Result<bool, String> {
    whole(text, 0, 1).map(|number| number == 1)
}

/// Parses a whole number from `low` to `high`; `0x` starts a hexadecimal one, as in NCCL.
pub(crate) fn whole(text: &str, low: i64, high: i64) -> Result<i64, String> {
    let text = text.trim();
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let (radix, digits) = match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        Some(rest) => (16, rest),
        None => (10, digits),
    };
    if digits.is_empty() || !digits.chars().all(|c| c.is_digit(radix)) {
        return Err("is not a whole number".into());
    }
    // Only digits are left, so parsing fails only if the number does not fit.
    let magnitude = i64::from_str_radix(digits, radix).unwrap_or(i64::MAX);
    let number = if negative { -magnitude } else { magnitude };
    if number < low {
        Err(format!("is less than {low}"))
    } else if number > high {
        Err(format!("is more than {high}"))
    } else {
        Ok(number)
    }
}

/// Parses a number of bytes up to `high`: a whole number and optionally `K`, `M` or `G` (also `KiB`, `MiB`, `GiB`),
/// which count in 1024s.
pub(crate) fn bytes(text: &str, high: u64) -> Result<u64, String> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, suffix) = text.split_at(end);
    if digits.is_empty() {
        return Err("is not a number of bytes".into());
    }
    let shift = match suffix.trim_start().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        _ => return Err(format!("has the unknown unit \"{}\"", crate::error::printable(suffix.trim_start()))),
    };
    let number = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
    number.filter(|number| *number <= high).ok_or_else(|| format!("is more than {}", bytes_text(high)))
}

/// Parses a time from `low` to `high`: a number of seconds, whole or with a decimal point, optionally with the unit
/// `s`; or a whole number of milliseconds with the unit `ms`.
pub(crate) fn seconds(text: &str, low: Duration, high: Duration) -> Result<Duration, String> {
    let text = text.trim();
    let lower = text.to_ascii_lowercase();
    let time = if let Some(number) = lower.strip_suffix("ms") {
        decimal(number.trim_end(), 0).map(Duration::from_millis)
    } else {
        decimal(lower.strip_suffix('s').unwrap_or(&lower).trim_end(), 3).map(Duration::from_millis)
    };
    let time = time.ok_or("is not a number of seconds")?;
    within(time, low, high)
}

/// Parses the time of a handshake as [`seconds`] does.
pub(crate) fn handshake_timeout(text: &str) -> Result<Duration, String> {
    seconds(text, HANDSHAKE_TIMEOUT.0, HANDSHAKE_TIMEOUT.1)
}

/// Parses the time for which a peer may be silent as [`seconds`] does.
pub(crate) fn peer_timeout(text: &str) -> Result<Duration, String> {
    seconds(text, PEER_TIMEOUT.0, PEER_TIMEOUT.1)
}

/// Parses the time of an outage as [`seconds`] does: 1 to 86400 s, or 0 for no limit.
pub(crate) fn outage(text: &str) -> Result<Duration, String> {
    let time = seconds(text, Duration::ZERO, Duration::from_secs(86_400))?;
    if !time.is_zero() && time < Duration::from_secs(1) {
        return Err("is less than 1 s and not 0".to_owned());
    }
    Ok(time)
}

/// Parses the time for which a rail may be silent as [`seconds`] does: 50 ms to 60 s, or 0 for any.
pub(crate) fn rail_timeout(text: &str) -> Result<Duration, String> {
    let time = seconds(text, Duration::ZERO, Duration::from_secs(60))?;
    if !time.is_zero() && time < Duration::from_millis(50) {
        return Err("is less than 0.05 s and not 0".to_owned());
    }
    Ok(time)
}

/// Parses a time from `low` to `high`, written as a whole number of milliseconds.
pub(crate) fn milliseconds(text: &str, low: Duration, high: Duration) -> Result<Duration, String> {
    let millis = decimal(text.trim(), 0).ok_or("is not a whole number of milliseconds")?;
    within(Duration::from_millis(millis), low, high)
}

/// Returns `time`, or an error that names the bound it breaks.
fn within(time: Duration, low: Duration, high: Duration) -> Result<Duration, String> {
    if time < low {
        Err(format!("is less than {}", time_text(low)))
    } else if time > high {
        Err(format!("is more than {}", time_text(high)))
    } else {
        Ok(time)
    }
}

/// Parses an unsigned decimal number with at most `places` digits after the point. Returns it times ten to the power of
/// `places`, saturating.
fn decimal(text: &str, places: usize) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let point = text.len() > whole.len();
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || (point && !digits(fraction)) || fraction.len() > places {
        return None;
    }
    let scale = 10_u64.pow(u32::try_from(places - fraction.len()).ok()?);
    Some(format!("{whole}{fraction}").parse::<u64>().map_or(u64::MAX, |number| number.saturating_mul(scale)))
}

/// Writes a number of bytes in the largest unit that divides it.
pub(crate) fn bytes_text(bytes: u64) -> String {
    match bytes {
        0 => "0".into(),
        _ if bytes.is_multiple_of(1 << 30) => format!("{}G", bytes >> 30),
        _ if bytes.is_multiple_of(1 << 20) => format!("{}M", bytes >> 20),
        _ if bytes.is_multiple_of(1 << 10) => format!("{}K", bytes >> 10),
        _ => bytes.to_string(),
    }
}

/// Writes a time in seconds, or in milliseconds if it is not a whole number of seconds.
pub(crate) fn time_text(time: Duration) -> String {
    if time.subsec_nanos() == 0 { format!("{}s", time.as_secs()) } else { format!("{}ms", time.as_millis()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers() {
        assert_eq!(whole(" 16 ", 1, 16), Ok(16));
        assert_eq!(whole("-1", -1, 255), Ok(-1));
        assert_eq!(whole("0x60", -1, 255), Ok(96));
        assert_eq!(whole("17", 1, 16), Err("is more than 16".into()));
        assert_eq!(whole("99999999999999999999999", 1, 16), Err("is more than 16".into()));
        assert_eq!(whole("-99999999999999999999999", 1, 16), Err("is less than 1".into()));
        for bad in ["", "-", "0x", "+-1", "1.5", "1 2", "--1", "ten", "0x-1"] {
            assert_eq!(whole(bad, 0, 9), Err("is not a whole number".into()), "{bad:?}");
        }
    }

    #[test]
    fn byte_sizes() {
        assert_eq!(bytes("0", 10), Ok(0));
        assert_eq!(bytes("8192", 1 << 30), Ok(8192));
        for good in ["8K", "8k", "8KiB", "8 kib", "8192b"] {
            assert_eq!(bytes(good, 1 << 30), Ok(8192), "{good:?}");
        }
        assert_eq!(bytes("1G", 1 << 30), Ok(1 << 30));
        assert_eq!(bytes("1025M", 1 << 30), Err("is more than 1G".into()));
        assert_eq!(bytes("99999999999999999999G", 1 << 30), Err("is more than 1G".into()));
        assert_eq!(bytes("8KB", 1 << 30), Err("has the unknown unit \"KB\"".into()));
        assert_eq!(bytes("1.5K", 1 << 30), Err("has the unknown unit \".5K\"".into()));
        assert_eq!(bytes("-1", 1 << 30), Err("is not a number of bytes".into()));
    }

    #[test]
    fn times() {
        let (low, high) = (Duration::from_secs(1), Duration::from_secs(3600));
        assert_eq!(seconds("30", low, high), Ok(Duration::from_secs(30)));
        assert_eq!(seconds("30 s", low, high), Ok(Duration::from_secs(30)));
        assert_eq!(seconds("2.5", low, high), Ok(Duration::from_millis(2500)));
        assert_eq!(seconds("1500ms", low, high), Ok(Duration::from_millis(1500)));
        assert_eq!(seconds("999ms", low, high), Err("is less than 1s".into()));
        assert_eq!(seconds("3601", low, high), Err("is more than 3600s".into()));
        assert_eq!(seconds("99999999999999999999", low, high), Err("is more than 3600s".into()));
        for bad in ["", "s", "ms", ".5", "5.", "1.2345", "1e3", "-1", "1.5ms", "inf", "NaN", "5m"] {
            assert_eq!(seconds(bad, low, high), Err("is not a number of seconds".into()), "{bad:?}");
        }
        assert_eq!(milliseconds("5000", low, high), Ok(Duration::from_secs(5)));
        assert!(milliseconds("5s", low, high).is_err());
    }
}
