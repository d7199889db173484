//! The places of values in a telemetry file: docs/telemetry.md has them as tables, and a test compares the two.

/// The first bytes of every telemetry file.
pub(crate) const MAGIC: [u8; 8] = *b"railweav";

/// The major version of the layout. A reader refuses a file with another one.
pub const MAJOR: u16 = 1;

/// The minor version of the layout, which grows when something is added that older readers may ignore.
pub const MINOR: u16 = 1;

/// The size of the header that this version writes, in bytes; the smallest that a reader accepts.
pub(crate) const HEADER: usize = 512;

/// The size of each record that this version writes, in bytes; the smallest that a reader accepts.
pub(crate) const RECORD: usize = 256;

/// The size of an entry of the header's directory that this version writes, in bytes; the smallest that a reader
/// accepts.
pub(crate) const ENTRY: usize = 24;

/// The place of the directory in the header that this version writes, in bytes.
pub(crate) const DIRECTORY: usize = 376;

/// The place of the checksum in the header, in bytes.
pub(crate) const CHECKSUM: std::ops::Range<usize> = 16..24;

/// The largest telemetry file, in bytes: a writer makes none, and a reader reads none, that is larger.
pub const LARGEST_FILE: u64 = 64 << 20;

/// The events that a file keeps. Each is a record in a ring.
pub const MOST_EVENTS: usize = 4096;

/// The most devices that a file has.
pub const MOST_DEVICES: usize = 256;

/// The most ports that a file has.
pub const MOST_PORTS: usize = 256;

/// The most connections that a file has.
pub const MOST_CONNECTIONS: usize = 65_536;

/// The most rails that a file has.
pub const MOST_RAILS: usize = 65_536;

/// A value with a place in the file. `out` and `bytes` are that place.
pub(crate) trait Field {
    /// Writes the value. The place is zeroed.
    fn put(&self, out: &mut [u8]);
    /// Reads the value. Every content of the place gives one.
    fn get(bytes: &[u8]) -> Self;
    /// Reads the value over another one, whose room it uses.
    fn update(&mut self, bytes: &[u8])
    where
        Self: Sized,
    {
        *self = Self::get(bytes);
    }
}

/// A structure whose fields have places.
pub(crate) trait Places: Sized {
    /// The first byte, the byte behind the last, and the name of each field, in order.
    #[cfg(test)]
    const PLACES: &'static [(usize, usize, &'static str)];
    /// Writes the fields. `out` is zeroed, and holds all places.
    fn put_all(&self, out: &mut [u8]);
    /// Reads the fields. `bytes` holds all places.
    fn get_all(bytes: &[u8]) -> Self;
    /// Reads the fields over others, whose room they use.
    fn update_all(&mut self, bytes: &[u8]);
}

/// Implements [`Places`] by a list of places.
macro_rules! places {
    ($type:ident { $($from:literal .. $to:literal => $field:ident),* $(,)? }) => {
        impl $crate::layout::Places for $type {
            #[cfg(test)]
            const PLACES: &'static [(usize, usize, &'static str)] = &[$(($from, $to, stringify!($field))),*];

            fn put_all(&self, out: &mut [u8]) {
                $($crate::layout::Field::put(&self.$field, &mut out[$from..$to]);)*
            }

            fn get_all(bytes: &[u8]) -> Self {
                Self { $($field: $crate::layout::Field::get(&bytes[$from..$to])),* }
            }

            fn update_all(&mut self, bytes: &[u8]) {
                $($crate::layout::Field::update(&mut self.$field, &bytes[$from..$to]);)*
            }
        }
    };
}
pub(crate) use places;

/// Defines an enum with a number for the file and a word for people. Numbers that this version does not know are read
/// as the first variant.
macro_rules! numbered {
    ($(#[$doc:meta])* $name:ident { $($(#[$about:meta])* $variant:ident = $number:literal, $word:literal;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum $name { #[default] $($(#[$about])* $variant = $number),* }

        impl $name {
            /// Every variant, in the order of the numbers.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// Returns the word for people.
            pub fn word(self) -> &'static str {
                match self { $(Self::$variant => $word),* }
            }
        }

        impl $crate::layout::Field for $name {
            fn put(&self, out: &mut [u8]) {
                out[0] = *self as u8;
            }

            fn get(bytes: &[u8]) -> Self {
                Self::ALL.iter().copied().find(|variant| *variant as u8 == bytes[0]).unwrap_or_default()
            }
        }
    };
}
pub(crate) use numbered;

macro_rules! number_fields {
    ($($type:ty),*) => { $(
        impl Field for $type {
            fn put(&self, out: &mut [u8]) {
                out.copy_from_slice(&self.to_le_bytes());
            }

            fn get(bytes: &[u8]) -> Self {
                let mut value = [0; size_of::<$type>()];
                value.copy_from_slice(bytes);
                <$type>::from_le_bytes(value)
            }
        }

        /// An unknown number has all bits set.
        impl Field for Option<$type> {
            fn put(&self, out: &mut [u8]) {
                self.unwrap_or(<$type>::MAX).put(out);
            }

            fn get(bytes: &[u8]) -> Self {
                Some(<$type as Field>::get(bytes)).filter(|value| *value != <$type>::MAX)
            }
        }
    )* };
}
number_fields!(u8, u16, u32, u64);

impl<const N: usize> Field for [u8; N] {
    fn put(&self, out: &mut [u8]) {
        out.copy_from_slice(self);
    }

    fn get(bytes: &[u8]) -> Self {
        let mut value = [0; N];
        value.copy_from_slice(bytes);
        value
    }
}

/// An unknown id has all bits set.
impl Field for Option<[u8; 16]> {
    fn put(&self, out: &mut [u8]) {
        self.unwrap_or([0xff; 16]).put(out);
    }

    fn get(bytes: &[u8]) -> Self {
        Some(<[u8; 16] as Field>::get(bytes)).filter(|id| *id != [0xff; 16])
    }
}

impl<const N: usize> Field for [u32; N] {
    fn put(&self, out: &mut [u8]) {
        for (value, place) in self.iter().zip(out.chunks_exact_mut(4)) {
            value.put(place);
        }
    }

    fn get(bytes: &[u8]) -> Self {
        let mut values = [0; N];
        for (value, place) in values.iter_mut().zip(bytes.chunks_exact(4)) {
            *value = u32::get(place);
        }
        values
    }
}

/// A text ends at the first zero byte, or with its place. One that is too long is cut between two characters.
impl Field for String {
    fn put(&self, out: &mut [u8]) {
        let end = self.floor_char_boundary(out.len());
        out[..end].copy_from_slice(&self.as_bytes()[..end]);
    }

    fn get(bytes: &[u8]) -> Self {
        let text = text(bytes);
        // Nearly all are text, of which this check is the faster one.
        match std::str::from_utf8(text) {
            Ok(text) => text.to_owned(),
            Err(_) => String::from_utf8_lossy(text).into_owned(),
        }
    }

    fn update(&mut self, bytes: &[u8]) {
        // Names and addresses stay the same for the life of a rail.
        if text(bytes) != self.as_bytes() {
            *self = Self::get(bytes);
        }
    }
}

/// Returns the bytes of a text at its place.
fn text(place: &[u8]) -> &[u8] {
    let end = place.iter().position(|byte| *byte == 0).unwrap_or(place.len());
    &place[..end]
}

/// Returns a record's part of the checksum: the CRC-32 (that of zlib and Ethernet) of its place in the file, as 8
/// bytes, and of its bytes.
pub(crate) fn part(place: u64, bytes: &[u8]) -> u64 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&place.to_le_bytes());
    crc.update(bytes);
    u64::from(crc.finalize())
}

/// Returns the header's part of the checksum, in which the checksum itself counts as zero.
pub(crate) fn header_part(header: &[u8]) -> u64 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&0_u64.to_le_bytes());
    crc.update(&header[..CHECKSUM.start]);
    crc.update(&[0; 8]);
    crc.update(&header[CHECKSUM.end..]);
    u64::from(crc.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_between_two_characters() {
        let cut = |text: &str| {
            let mut out = [0; 4];
            text.to_owned().put(&mut out);
            String::get(&out)
        };
        assert_eq!(cut("abcd"), "abcd");
        assert_eq!(cut("abcde"), "abcd");
        assert_eq!(cut("abcö"), "abc");
        assert_eq!(cut("a\0b"), "a");
        assert_eq!(String::get(b"a\xff\0x"), "a\u{fffd}");
    }

    #[test]
    fn a_number_with_all_bits_set_is_unknown() {
        let mut out = [0; 4];
        None::<u32>.put(&mut out);
        assert_eq!(out, [0xff; 4]);
        assert_eq!(Option::<u32>::get(&out), None);
        assert_eq!(Option::<u32>::get(&[0; 4]), Some(0));
    }

    #[test]
    fn parts_depend_on_the_place() {
        assert_ne!(part(512, b"abc"), part(768, b"abc"));
        // The check value of this CRC is 0xCBF43926 for the digits 1 to 9 (zlib's crc32).
        assert_eq!(crc32fast::hash(b"123456789"), 0xcbf4_3926);
    }
}
