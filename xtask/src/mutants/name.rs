//! The names of mutants, as cargo-mutants lists them: `FILE:LINE:COLUMN: CHANGE`.

/// A mutant's name in parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Name<'a> {
    /// The file, relative to the root of the tree.
    pub(super) file: &'a str,
    /// The line, counted from 1.
    pub(super) line: usize,
    /// The change and its function, in words.
    pub(super) change: &'a str,
}

impl<'a> Name<'a> {
    /// Returns the parts of a name; `None` if it has another form.
    pub(super) fn parse(name: &'a str) -> Option<Self> {
        let (file, rest) = name.split_once(':')?;
        let (line, rest) = rest.split_once(':')?;
        let (_column, change) = rest.split_once(": ")?;
        Some(Self { file, line: line.parse().ok()?, change })
    }

    /// Returns the name without the place in the file, which changes elsewhere in the file move. Several mutants may
    /// share it.
    pub(super) fn unplaced(self) -> String {
        format!("{}: {}", self.file, self.change)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_a_place_and_a_change() {
        let name = Name::parse("crates/a/src/b.rs:17:9: replace == with != in A::b").unwrap();
        assert_eq!(name, Name { file: "crates/a/src/b.rs", line: 17, change: "replace == with != in A::b" });
        assert_eq!(name.unplaced(), "crates/a/src/b.rs: replace == with != in A::b");
        assert_eq!(Name::parse("crates/a/src/b.rs: replace == with !="), None);
    }
}
