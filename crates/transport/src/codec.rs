//! Little-endian reading and writing with bounds, for everything that a peer sends.

use crate::PROTOCOL_VERSION;
use thiserror::Error;

/// The reason why bytes from a peer cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// The bytes end too early.
    #[error("{what} ends after {have} bytes, {need} are needed")]
    Short {
        /// The thing that was being read.
        what: &'static str,
        /// The number of bytes there are.
        have: usize,
        /// The number of bytes needed at least.
        need: usize,
    },
    /// Bytes are left over.
    #[error("{what} has {extra} bytes too many")]
    Long {
        /// The thing that was being read.
        what: &'static str,
        /// The number of bytes left over.
        extra: usize,
    },
    /// A field has a value that it must not have.
    #[error("{what} is {value:#x}; allowed: {allowed}")]
    Value {
        /// The field.
        what: &'static str,
        /// Its value.
        value: u64,
        /// The values that it may have.
        allowed: &'static str,
    },
    /// A protocol version that this build does not speak.
    #[error("{what} is {version}; allowed: {}; install the same version of Railweave on every host", PROTOCOL_VERSION)]
    Version {
        /// The field.
        what: &'static str,
        /// Its value.
        version: u16,
    },
}

/// Returns true if a character is invisible but changes how others are shown: control characters (Unicode's category
/// Cc), format characters such as those that change the direction of text (Cf, as of Unicode 16), and the separators of
/// lines and paragraphs (Zl, Zp).
fn changes_lines(character: char) -> bool {
    const FORMATS: [(u32, u32); 21] = [
        (0x00ad, 0x00ad),
        (0x0600, 0x0605),
        (0x061c, 0x061c),
        (0x06dd, 0x06dd),
        (0x070f, 0x070f),
        (0x0890, 0x0891),
        (0x08e2, 0x08e2),
        (0x180e, 0x180e),
        (0x200b, 0x200f),
        (0x2028, 0x202e),
        (0x2060, 0x2064),
        (0x2066, 0x206f),
        (0xfeff, 0xfeff),
        (0xfff9, 0xfffb),
        (0x110bd, 0x110bd),
        (0x110cd, 0x110cd),
        (0x13430, 0x1343f),
        (0x1bca0, 0x1bca3),
        (0x1d173, 0x1d17a),
        (0xe0001, 0xe0001),
        (0xe0020, 0xe007f),
    ];
    let code = u32::from(character);
    character.is_control() || FORMATS.iter().any(|(first, last)| (*first..=*last).contains(&code))
}

/// Reads fields one after the other.
pub(crate) struct Reader<'a> {
    what: &'static str,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(what: &'static str, bytes: &'a [u8]) -> Self {
        Self { what, bytes, at: 0 }
    }

    pub(crate) fn take(&mut self, count: usize) -> Result<&'a [u8], DecodeError> {
        let end = self.at + count;
        let Some(taken) = self.bytes.get(self.at..end) else {
            return Err(DecodeError::Short { what: self.what, have: self.bytes.len(), need: end });
        };
        self.at = end;
        Ok(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N)?);
        Ok(out)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, DecodeError> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    pub(crate) fn u16(&mut self) -> Result<u16, DecodeError> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub(crate) fn i16(&mut self) -> Result<i16, DecodeError> {
        Ok(i16::from_le_bytes(self.array()?))
    }

    pub(crate) fn u32(&mut self) -> Result<u32, DecodeError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(crate) fn i32(&mut self) -> Result<i32, DecodeError> {
        Ok(i32::from_le_bytes(self.array()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64, DecodeError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// Reads reserved bytes, which must be zero.
    pub(crate) fn zeros(&mut self, count: usize) -> Result<(), DecodeError> {
        match self.take(count)?.iter().find(|byte| **byte != 0) {
            None => Ok(()),
            Some(&byte) => Err(DecodeError::Value { what: "a reserved byte", value: u64::from(byte), allowed: "0" }),
        }
    }

    /// Reads a length of two bytes and the text that follows it. Replaces invalid UTF-8, and characters that would
    /// change how a line looks.
    pub(crate) fn text(&mut self, field: &'static str, most: usize) -> Result<String, DecodeError> {
        let length = usize::from(self.u16()?);
        if length > most {
            return Err(DecodeError::Value { what: field, value: length as u64, allowed: "a shorter text" });
        }
        let text = String::from_utf8_lossy(self.take(length)?);
        Ok(text.chars().map(|c| if changes_lines(c) { '\u{fffd}' } else { c }).collect())
    }

    pub(crate) fn end(self) -> Result<(), DecodeError> {
        match self.bytes.len() - self.at {
            0 => Ok(()),
            extra => Err(DecodeError::Long { what: self.what, extra }),
        }
    }
}

/// Writes fields one after the other.
#[derive(Default)]
pub(crate) struct Writer {
    pub(crate) bytes: Vec<u8>,
}

impl Writer {
    pub(crate) fn put(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(bytes);
        self
    }

    pub(crate) fn u8(&mut self, value: u8) -> &mut Self {
        self.put(&[value])
    }

    pub(crate) fn u16(&mut self, value: u16) -> &mut Self {
        self.put(&value.to_le_bytes())
    }

    pub(crate) fn i16(&mut self, value: i16) -> &mut Self {
        self.put(&value.to_le_bytes())
    }

    pub(crate) fn u32(&mut self, value: u32) -> &mut Self {
        self.put(&value.to_le_bytes())
    }

    pub(crate) fn i32(&mut self, value: i32) -> &mut Self {
        self.put(&value.to_le_bytes())
    }

    pub(crate) fn u64(&mut self, value: u64) -> &mut Self {
        self.put(&value.to_le_bytes())
    }

    pub(crate) fn zeros(&mut self, count: usize) -> &mut Self {
        self.bytes.resize(self.bytes.len() + count, 0);
        self
    }

    /// Writes text of at most `most` bytes, cut at a character boundary if it is longer.
    pub(crate) fn text(&mut self, text: &str, most: usize) -> &mut Self {
        let cut = text.floor_char_boundary(most.min(usize::from(u16::MAX)));
        self.u16(cut as u16).put(&text.as_bytes()[..cut])
    }
}

/// Returns a count from 1 to `most`.
pub(crate) fn count(what: &'static str, value: u8, most: usize, allowed: &'static str) -> Result<usize, DecodeError> {
    match usize::from(value) {
        0 => Err(DecodeError::Value { what, value: 0, allowed }),
        count if count > most => Err(DecodeError::Value { what, value: count as u64, allowed }),
        count => Ok(count),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_that_would_change_how_a_line_looks_is_replaced_and_other_text_is_not() {
        let read = |text: &str| {
            let mut out = Writer::default();
            out.text(text, 200);
            Reader::new("a test", &out.bytes).text("a text", 200).unwrap()
        };
        let odd = "a\n\u{85}\u{202e}\u{2066}\u{2028}\u{2029}\u{200b}\u{feff}\u{ad}\u{e0041}\u{7f}b";
        assert_eq!(read(odd), format!("a{}b", "\u{fffd}".repeat(11)));
        let fine = "nœud-7 узел ノード 𝔫7 100% \u{a0}";
        assert_eq!(read(fine), fine);
    }

    #[test]
    fn a_reader_says_what_is_missing_and_what_is_left_over() {
        let mut reader = Reader::new("a test", &[1, 2, 3]);
        assert_eq!(reader.u16(), Ok(0x0201));
        assert_eq!(reader.u16(), Err(DecodeError::Short { what: "a test", have: 3, need: 4 }));
        assert_eq!(reader.end(), Err(DecodeError::Long { what: "a test", extra: 1 }));
    }

    #[test]
    fn a_text_may_be_as_long_as_allowed_and_no_longer() {
        let mut out = Writer::default();
        out.text("four", 4);
        assert_eq!(Reader::new("a test", &out.bytes).text("a text", 4).as_deref(), Ok("four"));
        let long = Reader::new("a test", &out.bytes).text("a text", 3);
        assert_eq!(long, Err(DecodeError::Value { what: "a text", value: 4, allowed: "a shorter text" }));
    }
}
