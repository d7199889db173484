//! Values of a description. An error about one says what is allowed; the reader of the description adds the place.

use std::fmt::{self, Display};
use std::marker::PhantomData;

use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use toml::Value;

/// Reads a value with `read`, which returns `None` for one that is not `allowed`.
pub(crate) fn value<'de, D: Deserializer<'de>, T>(
    deserializer: D,
    allowed: impl Display,
    read: impl FnOnce(&Value) -> Option<T>,
) -> Result<T, D::Error> {
    // Integers from 2^63 on cannot even be read as a `Value`.
    let value = Value::deserialize(deserializer).ok();
    value.as_ref().and_then(read).ok_or_else(|| D::Error::custom(format!("expected {allowed}")))
}

/// Returns the value as a number; `None` if it is not a number in this range.
pub(crate) fn number<T: TryFrom<u64>>(value: &Value, from: u64, to: u64) -> Option<T> {
    let number = u64::try_from(value.as_integer()?).ok()?;
    Some(number).filter(|number| (from..=to).contains(number))?.try_into().ok()
}

/// Reads a number from `FROM` to `TO`, which must not exceed `T`.
pub(crate) fn within<'de, D: Deserializer<'de>, T: TryFrom<u64>, const FROM: u64, const TO: u64>(
    deserializer: D,
) -> Result<T, D::Error> {
    value(deserializer, format_args!("a number from {FROM} to {TO}"), |value| number(value, FROM, TO))
}

/// Reads one of these words.
pub(crate) fn word<'de, D: Deserializer<'de>, T: Copy>(deserializer: D, words: &[(&str, T)]) -> Result<T, D::Error> {
    let names: Vec<&str> = words.iter().map(|&(name, _)| name).collect();
    value(deserializer, format_args!("one of {}", names.join(", ")), |value| {
        words.iter().find(|(name, _)| value.as_str() == Some(name)).map(|&(_, value)| value)
    })
}

/// Reads a list. Its elements have errors of their own; `allowed` is for a value that is not a list.
pub(crate) fn list<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
    allowed: &'static str,
) -> Result<Vec<T>, D::Error> {
    struct List<T>(&'static str, PhantomData<T>);
    impl<'de, T: Deserialize<'de>> Visitor<'de> for List<T> {
        type Value = Vec<T>;

        fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            formatter.write_str(self.0)
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Vec<T>, A::Error> {
            std::iter::from_fn(|| elements.next_element().transpose()).collect()
        }
    }
    deserializer.deserialize_seq(List(allowed, PhantomData))
}
