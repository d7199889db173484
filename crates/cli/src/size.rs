//! Sizes in bytes, as users write them and as tables show them.

use std::fmt;
use std::str::FromStr;

/// A number of bytes: `4096`, `512KiB`, `25MiB`, `1GiB`; `K`, `M` and `G` mean the same powers of 1024.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size(pub(crate) usize);

const UNITS: [(&str, usize); 4] = [("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10), ("", 1)];

/// The largest message that NCCL sends.
const MAX_MESSAGE: Size = Size(1 << 30);

/// Parses the size of one message.
pub(crate) fn of_message(text: &str) -> Result<Size, String> {
    let size: Size = text.parse()?;
    if size.0 > MAX_MESSAGE.0 {
        return Err(format!("a message of {size} is not possible; allowed: 0 to {MAX_MESSAGE}"));
    }
    Ok(size)
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("{text:?} is not a size; allowed: whole numbers with KiB, MiB, GiB or no unit, such as 25MiB");
        let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
        let unit = text[digits.len()..].trim_end_matches(['b', 'B']).trim_end_matches('i').to_ascii_uppercase();
        let (_, factor) = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?;
        let number: usize = digits.parse().map_err(|_| wrong())?;
        number.checked_mul(*factor).map(Self).ok_or_else(wrong)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, factor) in &UNITS[..3] {
            if self.0 >= *factor {
                let number = self.0 as f64 / *factor as f64;
                let digits = usize::from(!self.0.is_multiple_of(*factor));
                return write!(f, "{number:.digits$} {unit}iB");
            }
        }
        write!(f, "{} B", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_users_write_them() {
        for (text, bytes) in
            [("8", 8), ("8B", 8), ("4k", 4096), ("25MiB", 25 << 20), ("1GiB", 1 << 30), ("2MB", 2 << 20), ("0", 0)]
        {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
        for text in ["", "MiB", "1.5G", "-1", "7 apples", "1TiB", "99999999999999999999", "99999999999999G"] {
            let error = text.parse::<Size>().unwrap_err();
            assert!(error.contains("allowed: "), "{error}");
        }
    }

    #[test]
    fn a_message_is_at_most_as_long_as_nccls() {
        assert_eq!(of_message("1GiB"), Ok(Size(1 << 30)));
        assert!(of_message("1073741825").unwrap_err().contains("allowed: 0 to 1 GiB"));
        assert!(of_message("lots").unwrap_err().contains("is not a size"));
    }

    #[test]
    fn sizes_are_shown_with_at_most_one_digit() {
        for (bytes, text) in [(8, "8 B"), (25 << 20, "25 MiB"), (1536, "1.5 KiB"), (5 << 30, "5 GiB")] {
            assert_eq!(Size(bytes).to_string(), text);
        }
    }
}
