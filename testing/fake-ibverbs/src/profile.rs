//! Profiles: the limits and habits of one kind of adapter, from the TOML files in `profiles/`.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::LazyLock;

use serde::{Deserialize, Deserializer};

use crate::faults;

/// The strict profile: that of devices for which neither the description nor the environment names one.
pub(crate) const PLAIN: &str = "plain";

/// All profiles: the name and the text of each.
pub(crate) const TEXTS: &[(&str, &str)] = &[
    (PLAIN, include_str!("../profiles/plain.toml")),
    ("connectx-5", include_str!("../profiles/connectx-5.toml")),
    ("connectx-6", include_str!("../profiles/connectx-6.toml")),
    ("connectx-7", include_str!("../profiles/connectx-7.toml")),
    ("connectx-8", include_str!("../profiles/connectx-8.toml")),
    ("mlx5-vf", include_str!("../profiles/mlx5-vf.toml")),
    ("bnxt_re", include_str!("../profiles/bnxt_re.toml")),
    ("irdma", include_str!("../profiles/irdma.toml")),
    ("ionic", include_str!("../profiles/ionic.toml")),
    ("mana", include_str!("../profiles/mana.toml")),
    ("rxe", include_str!("../profiles/rxe.toml")),
];

/// Returns the name and the title of each adapter that the fake libibverbs can imitate: of all profiles but `plain`.
pub fn profiles() -> impl Iterator<Item = (&'static str, &'static str)> {
    TEXTS.iter().filter(|(name, _)| *name != PLAIN).map(|(name, _)| (*name, PROFILES[name].title.as_str()))
}

static PROFILES: LazyLock<BTreeMap<&'static str, Profile>> = LazyLock::new(|| {
    let read = |text| toml::from_str(text).map_err(|error| error.to_string());
    TEXTS
        .iter()
        .map(|&(name, text)| (name, read(text).unwrap_or_else(|error| panic!("{name}.toml: {error}"))))
        .collect()
});

/// One kind of adapter.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Profile {
    /// The adapter's name, for people.
    pub(crate) title: String,
    /// The defaults for the keys of a device's description.
    pub(crate) device: toml::Table,
    /// The defaults for the keys of each of its ports.
    pub(crate) port: toml::Table,
    #[serde(default)]
    pub(crate) habits: Habits,
}

/// The habits in which adapters and their providers differ, apart from limits. A habit that a profile does not name is
/// that of the strict profile `plain`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Habits {
    /// True if libmlx5 drives it: the result of mlx5dv_is_supported(3).
    pub(crate) libmlx5: bool,
    /// The size of send queues in bytes, if requests share bytes instead of taking one place each.
    pub(crate) send_ring: Option<SendRing>,
    /// The rounding of the queue sizes that a program asks for.
    pub(crate) send_queue: Rounding,
    pub(crate) receive_queue: Rounding,
    pub(crate) shared_receive_queue: Rounding,
    pub(crate) completion_queue: Rounding,
    /// The minimum room for inline data of a queue pair, in bytes.
    pub(crate) least_inline: u32,
    /// True if inline data is read from memory when the request is carried out, like any other data.
    pub(crate) inline_ignored: bool,
    /// The failure to create a queue pair that has neither receives of its own nor a shared queue.
    pub(crate) empty_receive_queue: Refusal,
    /// The failure to create a shared receive queue, whatever limits the device reports.
    pub(crate) shared_receives: Refusal,
    /// The failure to register memory with optional rights, such as relaxed ordering.
    pub(crate) optional_access: Refusal,
    /// The failure to register memory for remote atomics.
    pub(crate) atomic_access: Refusal,
    /// True if the completion of a write reports its length.
    pub(crate) sent_bytes: bool,
    /// True if completions stay in their queue when their queue pair is destroyed or reset.
    pub(crate) stale_completions: bool,
    /// True if a queue pair in the error state stays there although the change to the reset state is accepted.
    pub(crate) stays_in_error: bool,
    /// The failure to query a queue pair.
    pub(crate) query_pair: Refusal,
    /// True if a queue pair on a shared receive queue raises QP_LAST_WQE_REACHED when it fails.
    pub(crate) last_receive_event: bool,
}

impl Default for Habits {
    fn default() -> Self {
        Self {
            libmlx5: false,
            send_ring: None,
            send_queue: Rounding::Asked,
            receive_queue: Rounding::Asked,
            shared_receive_queue: Rounding::Asked,
            completion_queue: Rounding::Asked,
            least_inline: 0,
            inline_ignored: false,
            empty_receive_queue: Refusal(None),
            shared_receives: Refusal(None),
            optional_access: Refusal(None),
            atomic_access: Refusal(None),
            sent_bytes: true,
            stale_completions: false,
            stays_in_error: false,
            query_pair: Refusal(None),
            last_receive_event: true,
        }
    }
}

/// A send queue whose size is in bytes. All fields are in bytes.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SendRing {
    /// The part of each request before its pieces or its inline data.
    pub(crate) overhead: u32,
    /// The size of a request is a multiple of this.
    pub(crate) unit: u32,
    /// The longest request.
    pub(crate) longest: u32,
    /// The longest queue.
    pub(crate) bytes: u32,
}

/// The rounding of a size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Rounding {
    /// The size that was asked for.
    #[default]
    Asked,
    PowerOfTwo,
    /// A power of two of which one place stays free.
    PowerOfTwoLessOne,
}

impl Rounding {
    /// Returns the size granted for `asked`: at most `most`, unless `asked` is larger.
    pub(crate) fn apply(self, asked: u32, most: u32) -> u32 {
        let rounded = match self {
            _ if asked == 0 => 0,
            Self::Asked => asked,
            Self::PowerOfTwo => asked.next_power_of_two(),
            Self::PowerOfTwoLessOne => (asked + 1).next_power_of_two() - 1,
        };
        rounded.min(most).max(asked)
    }
}

/// The error with which a request is refused; `None` if it is not.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Refusal(Option<c_int>);

impl Refusal {
    /// Returns the error if `happens`.
    pub(crate) fn when(self, happens: bool) -> Result<(), c_int> {
        self.0.filter(|_| happens).map_or(Ok(()), Err)
    }
}

impl<'de> Deserialize<'de> for Refusal {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        let errno = faults::errno(&name).ok_or_else(|| serde::de::Error::custom(format!("no error {name}")))?;
        Ok(Self(Some(errno)))
    }
}

impl Profile {
    /// Returns the profile with this name; the error lists all names.
    pub(crate) fn named(name: &str) -> Result<&'static Self, String> {
        PROFILES.get(name).ok_or_else(|| {
            let names: Vec<&str> = TEXTS.iter().map(|&(name, _)| name).collect();
            format!("no profile {name}; one of {}", names.join(", "))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_habits_values_and_profiles_are_refused() {
        let text = TEXTS[0].1;
        let read = |text: &str| toml::from_str::<Profile>(text).map_err(|error| error.to_string());
        for (more, part) in [
            ("[habits]\nhumour = true\n", "humour"),
            ("[habits]\nsend_queue = \"up\"\n", "up"),
            ("[habits]\nshared_receives = \"EWHAT\"\n", "no error EWHAT"),
        ] {
            let error = read(&format!("{text}{more}")).expect_err(more);
            assert!(error.contains(part), "{more}: {error}");
        }
        let error = Profile::named("connectx-4").expect_err("there is none");
        assert!(error.contains("no profile connectx-4") && error.contains("connectx-5"), "{error}");
        assert_eq!(profiles().count(), TEXTS.len() - 1);
    }

    #[test]
    fn sizes_are_rounded_up_and_never_beyond_what_the_device_has() {
        let all = [Rounding::Asked, Rounding::PowerOfTwo, Rounding::PowerOfTwoLessOne];
        assert_eq!(all.map(|rounding| rounding.apply(100, 1000)), [100, 128, 127]);
        assert_eq!(all.map(|rounding| rounding.apply(128, 1000)), [128, 128, 255]);
        assert_eq!(all.map(|rounding| rounding.apply(0, 1000)), [0, 0, 0]);
        assert_eq!(all.map(|rounding| rounding.apply(900, 1000)), [900, 1000, 1000]);
    }
}
