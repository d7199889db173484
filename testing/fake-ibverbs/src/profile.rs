//! Profiles: what one kind of adapter can and how it behaves, from the TOML files in `profiles/`.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::LazyLock;

use railweave_fabric_verbs::sys;
use serde::{Deserialize, Deserializer};

use crate::description::{DeviceFacts, PortFacts};
use crate::faults;

/// The profile of devices that name none.
pub(crate) const PLAIN: &str = "plain";

/// All profiles: a name, and the text.
const TEXTS: &[(&str, &str)] = &[
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

/// The names of all adapters that the stand-in can be, each with what it is.
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
    /// What people call it.
    title: String,
    /// The keys of a device's description, with their values.
    device: toml::Table,
    /// Those of each of its ports.
    port: toml::Table,
    #[serde(default)]
    habits: Habits,
}

/// What adapters and their providers do differently, beyond limits. Without a word: nothing of it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Habits {
    /// libmlx5 drives it, as mlx5dv_is_supported(3) says.
    pub(crate) libmlx5: bool,
    /// Send queues are so many bytes, in which each request takes its share.
    pub(crate) send_ring: Option<SendRing>,
    /// How the sizes of queues that are asked for are rounded up.
    pub(crate) send_queue: Rounding,
    pub(crate) receive_queue: Rounding,
    pub(crate) shared_receive_queue: Rounding,
    pub(crate) completion_queue: Rounding,
    /// The least room for inline data that a queue pair gets.
    pub(crate) least_inline: u32,
    /// Inline data is read from memory when the request is carried out, like any other.
    pub(crate) inline_ignored: bool,
    /// Creating a queue pair without receives of its own and without a shared queue fails so.
    pub(crate) empty_receive_queue: Refusal,
    /// Creating a shared receive queue fails so, whatever the device says that it has.
    pub(crate) shared_receives: Refusal,
    /// Registering memory with optional rights, such as relaxed ordering, fails so.
    pub(crate) optional_access: Refusal,
    /// Registering memory for remote atomics fails so.
    pub(crate) atomic_access: Refusal,
    /// The completion of a write says how long it was.
    pub(crate) sent_bytes: bool,
    /// Completions stay in their queue when their queue pair is destroyed or reset.
    pub(crate) stale_completions: bool,
    /// A queue pair on a shared receive queue that breaks raises QP_LAST_WQE_REACHED.
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
            last_receive_event: true,
        }
    }
}

/// A send queue that is measured in bytes.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SendRing {
    /// Bytes of each request before its pieces or its inline data.
    overhead: u32,
    /// Requests are multiples of this.
    unit: u32,
    /// The longest request.
    longest: u32,
    /// The longest queue.
    bytes: u32,
}

/// Bytes of one piece of memory in a request, and of what stands before inline data.
const PIECE_BYTES: u32 = 16;
const INLINE_HEAD_BYTES: u32 = 4;

/// How a size is rounded up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Rounding {
    /// Not at all.
    #[default]
    Asked,
    PowerOfTwo,
    /// One place of a power of two stays free.
    PowerOfTwoLessOne,
}

impl Rounding {
    /// What is granted where `asked` is asked for; no more than `most` unless that was asked for.
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

/// The error with which something is refused, if it is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Refusal(Option<c_int>);

impl Refusal {
    /// The error, where `happens`.
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
    /// The profile of this name; the error says which there are.
    pub(crate) fn named(name: &str) -> Result<&'static Self, String> {
        PROFILES.get(name).ok_or_else(|| {
            let names: Vec<&str> = TEXTS.iter().map(|&(name, _)| name).collect();
            format!("no profile {name}; one of {}", names.join(", "))
        })
    }

    /// Gives a device and the ports that it will have what this kind has.
    pub(crate) fn apply(&self, device: &mut DeviceFacts) -> Result<(), String> {
        let mut port = PortFacts::new();
        // Most kinds have none, and do not say so.
        device.data_direct = None;
        self.port.iter().try_for_each(|(key, value)| port.set(key, &plain(key, value)?))?;
        self.device.iter().try_for_each(|(key, value)| device.set(key, &plain(key, value)?))?;
        (device.habits, device.new_port) = (self.habits.clone(), port);
        Ok(())
    }
}

/// A value as a machine's description has it.
fn plain(key: &str, value: &toml::Value) -> Result<String, String> {
    match value {
        toml::Value::String(text) => Ok(text.clone()),
        toml::Value::Integer(number) => Ok(number.to_string()),
        toml::Value::Boolean(flag) => Ok(if *flag { "yes" } else { "no" }.to_owned()),
        _ => Err(format!("{key} is a text, a number, true or false")),
    }
}

impl Habits {
    /// The capabilities that a queue pair gets for those that are asked for, which are within the device's limits; an error
    /// where the queue would be too long.
    pub(crate) fn grant(
        &self,
        device: &DeviceFacts,
        asked: &sys::QpInitAttributes,
    ) -> Result<sys::QpCapabilities, c_int> {
        let wish = asked.cap;
        let own_receives = asked.srq.is_null();
        self.empty_receive_queue.when(own_receives && wish.max_recv_wr == 0)?;
        let most = device.max_qp_wr;
        let receives = if own_receives { self.receive_queue.apply(wish.max_recv_wr, most) } else { wish.max_recv_wr };
        let granted = sys::QpCapabilities {
            max_send_wr: self.send_queue.apply(wish.max_send_wr, most),
            max_recv_wr: receives,
            max_inline_data: wish.max_inline_data.max(self.least_inline),
            ..wish
        };
        match self.send_ring {
            Some(ring) if wish.max_send_wr > 0 => ring.grant(granted),
            _ => Ok(granted),
        }
    }
}

impl SendRing {
    fn grant(&self, wish: sys::QpCapabilities) -> Result<sys::QpCapabilities, c_int> {
        let inline = match wish.max_inline_data {
            0 => 0,
            bytes => (INLINE_HEAD_BYTES + bytes).next_multiple_of(PIECE_BYTES),
        };
        let request = self.overhead + inline.max(wish.max_send_sge * PIECE_BYTES);
        let request = request.next_multiple_of(self.unit);
        let ring = (u64::from(wish.max_send_wr) * u64::from(request)).next_power_of_two();
        if request > self.longest.next_multiple_of(self.unit) || ring > self.bytes.into() {
            return Err(libc::EINVAL);
        }
        Ok(sys::QpCapabilities {
            max_send_wr: (ring / u64::from(request)) as u32,
            max_inline_data: request - self.overhead - INLINE_HEAD_BYTES,
            ..wish
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::description::Machine;

    fn device(profile: &str) -> DeviceFacts {
        let text = format!("[device a]\nprofile = {profile}\n[port 1]\n");
        text.parse::<Machine>().expect("well-formed").devices.remove(0)
    }

    fn wish(sends: u32, receives: u32, inline: u32) -> sys::QpInitAttributes {
        // SAFETY: all zeros is valid for these plain fields.
        let mut wish: sys::QpInitAttributes = unsafe { std::mem::zeroed() };
        wish.cap = sys::QpCapabilities {
            max_send_wr: sends,
            max_recv_wr: receives,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: inline,
        };
        wish
    }

    #[test]
    fn every_profile_is_read_and_says_all_that_the_plain_one_says() {
        let keys = |table: &toml::Table| table.keys().cloned().collect::<Vec<_>>();
        let plain = Profile::named(PLAIN).expect("it is there");
        for &(name, text) in TEXTS {
            let profile = Profile::named(name).expect(name);
            let facts = device(name);
            assert!(!profile.title.is_empty() && facts.ports.len() == 1, "{name}");
            for (table, of) in [(&profile.device, &plain.device), (&profile.port, &plain.port)] {
                let missing: Vec<_> = keys(of).into_iter().filter(|key| !table.contains_key(key)).collect();
                assert!(missing.is_empty(), "{name} does not say {missing:?}");
            }
            assert!(name == PLAIN || text.contains(".c"), "{name} names no source");
        }
        let error = Profile::named("connectx-4").expect_err("there is none");
        assert!(error.contains("no profile connectx-4") && error.contains("connectx-5"), "{error}");
        assert_eq!(profiles().count(), TEXTS.len() - 1);
    }

    #[test]
    fn a_profile_that_says_what_nobody_knows_is_refused() {
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
        let mut profile = read(text).expect("well-formed");
        profile.device.insert("max_wit".to_owned(), toml::Value::Integer(1));
        let error = profile.apply(&mut device(PLAIN)).expect_err("no such limit");
        assert!(error.contains("max_wit"), "{error}");
    }

    #[test]
    fn sizes_are_rounded_up_and_never_beyond_what_the_device_has() {
        let all = [Rounding::Asked, Rounding::PowerOfTwo, Rounding::PowerOfTwoLessOne];
        assert_eq!(all.map(|rounding| rounding.apply(100, 1000)), [100, 128, 127]);
        assert_eq!(all.map(|rounding| rounding.apply(128, 1000)), [128, 128, 255]);
        assert_eq!(all.map(|rounding| rounding.apply(0, 1000)), [0, 0, 0]);
        assert_eq!(all.map(|rounding| rounding.apply(900, 1000)), [900, 1000, 1000]);
    }

    #[test]
    fn a_strict_adapter_grants_what_is_asked_for() {
        let plain = device(PLAIN);
        let granted = plain.habits.grant(&plain, &wish(100, 0, 64)).expect("within its limits");
        assert_eq!((granted.max_send_wr, granted.max_recv_wr, granted.max_inline_data), (100, 0, 64));
    }

    #[test]
    fn inline_data_of_a_connectx_takes_room_from_its_send_queue() {
        let card = device("connectx-7");
        let grant = |sends, inline| card.habits.grant(&card, &wish(sends, 100, inline));
        let granted = grant(100, 0).expect("within its limits");
        assert_eq!((granted.max_send_wr, granted.max_recv_wr, granted.max_inline_data), (128, 128, 60));
        let granted = grant(100, 64).expect("within its limits");
        assert_eq!((granted.max_send_wr, granted.max_inline_data), (102, 124));
        assert_eq!(grant(8192, 0).map(|granted| granted.max_send_wr), Ok(8192));
        assert_eq!(grant(8192, 64).map(|granted| granted.max_send_wr), Err(libc::EINVAL), "too long with inline data");
        assert!(grant(1, 812).is_ok() && grant(1, 850).is_err());
    }

    #[test]
    fn an_adapter_may_want_receives_of_every_queue_pair() {
        let mana = device("mana");
        assert_eq!(mana.habits.grant(&mana, &wish(64, 0, 64)).map(|_| ()), Err(libc::ENOMEM));
        assert!(mana.habits.grant(&mana, &wish(64, 1, 64)).is_ok());
    }
}
