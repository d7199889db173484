//! One setting: its value, the origin of the value, and the reading of its variables.

use crate::error::{OptionError, Warning, printable};
use crate::nccl::Reading;
use railweave_fabric::{AddressRange, DataDirect, Family, Mode, PolicyName, RelaxedOrdering};
use std::ffi::{OsStr, OsString};
use std::fmt;

/// A value and its origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting<T> {
    /// The value to use.
    pub value: T,
    /// The origin of the value, for the log.
    pub source: Source,
}

/// The origin of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// Nothing was set.
    Default,
    /// One variable.
    Variable(&'static str),
    /// Two variables that make one value together.
    Variables(&'static str, &'static str),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Default => f.write_str("default"),
            Source::Variable(name) => f.write_str(name),
            Source::Variables(first, second) => write!(f, "{first} and {second}"),
        }
    }
}

impl Source {
    /// Returns true if it is a variable of NCCL itself, and not of a plugin.
    pub fn is_nccls(&self) -> bool {
        matches!(self, Source::Variable(name) if name.starts_with("NCCL_") && !name.starts_with("NCCL_MESH_"))
    }
}

/// The way in which a variable's text is read.
enum Parse<T> {
    /// Turns text into a value; the error is the end of a sentence that begins with the text.
    Strict(fn(&str) -> Result<T, String>),
    /// Reads text as NCCL does.
    Nccl(fn(&str) -> Reading<T>),
}

/// One variable of a setting, or two that make one value together.
pub(crate) struct Variable<T> {
    name: &'static str,
    allowed: &'static str,
    example: &'static str,
    parse: Parse<T>,
    second: Option<Second<T>>,
    /// The reason why an empty value is an error; `None` if it counts as unset.
    never_empty: Option<&'static str>,
}

struct Second<T> {
    name: &'static str,
    join: fn(Option<T>, Option<T>) -> T,
    /// True if neither variable means anything without the other.
    is_needed: bool,
}

/// Returns the variable `name` with its allowed values, a value to recommend, and the parser of its text.
pub(crate) const fn variable<T>(
    name: &'static str,
    allowed: &'static str,
    example: &'static str,
    parse: fn(&str) -> Result<T, String>,
) -> Variable<T> {
    Variable { name, allowed, example, parse: Parse::Strict(parse), second: None, never_empty: None }
}

/// Like [`variable`], for one of NCCL's own: none of its values is an error.
pub(crate) const fn nccls<T>(
    name: &'static str,
    allowed: &'static str,
    example: &'static str,
    read: fn(&str) -> Reading<T>,
) -> Variable<T> {
    Variable { name, allowed, example, parse: Parse::Nccl(read), second: None, never_empty: None }
}

impl<T> Variable<T> {
    /// Adds a second variable of the same kind; `join` makes one value of those that are set.
    pub(crate) const fn and(self, name: &'static str, join: fn(Option<T>, Option<T>) -> T) -> Variable<T> {
        Variable { second: Some(Second { name, join, is_needed: false }), ..self }
    }

    /// As [`Self::and`], for two variables of which one alone is an error.
    pub(crate) const fn and_always(self, name: &'static str, join: fn(Option<T>, Option<T>) -> T) -> Variable<T> {
        Variable { second: Some(Second { name, join, is_needed: true }), ..self }
    }

    /// Makes an empty value an error for this reason, the end of a sentence that begins with the value.
    pub(crate) const fn never_empty(self, reason: &'static str) -> Variable<T> {
        Variable { never_empty: Some(reason), ..self }
    }

    /// Returns the variable's name, or both names.
    pub(crate) const fn names(&self) -> [Option<&'static str>; 2] {
        match &self.second {
            Some(second) => [Some(self.name), Some(second.name)],
            None => [Some(self.name), None],
        }
    }

    /// Returns the allowed values, for people.
    pub(crate) const fn allowed(&self) -> &'static str {
        self.allowed
    }

    /// Returns a value worth trying.
    pub(crate) const fn example(&self) -> &'static str {
        self.example
    }
}

/// Reads settings through a lookup and collects their errors and warnings.
pub(crate) struct Reader<L> {
    pub(crate) lookup: L,
    pub(crate) errors: Vec<OptionError>,
    pub(crate) warnings: Vec<Warning>,
}

impl<L: Fn(&str) -> Option<OsString>> Reader<L> {
    /// Returns the value of the first of `variables` that is set, otherwise `default`. An invalid value is recorded as
    /// an error (as a warning if the variable is NCCL's), and `default` replaces it, so that the other settings are
    /// still read.
    pub(crate) fn read<T>(&mut self, variables: &[Variable<T>], default: T) -> Setting<T> {
        let main = variables.first().map_or("", |variable| variable.name);
        for variable in variables {
            let first = self.one(variable, variable.name, main);
            let Some(second) = &variable.second else {
                match first {
                    Text::Unset => continue,
                    Text::Useless => break,
                    Text::Value(value) => return Setting { value, source: Source::Variable(variable.name) },
                }
            };
            let source = match (first, self.one(variable, second.name, main)) {
                (Text::Unset, Text::Unset) => continue,
                (Text::Useless, _) | (_, Text::Useless) => break,
                (Text::Value(a), Text::Value(b)) => (Some(a), Some(b), Source::Variables(variable.name, second.name)),
                (first, _) if second.is_needed => {
                    let is_first = matches!(first, Text::Value(_));
                    let names = [variable.name, second.name];
                    let (given, missing) = if is_first { (names[0], names[1]) } else { (names[1], names[0]) };
                    self.refuse(OptionError {
                        variable: missing,
                        value: String::new(),
                        reason: format!("is not set, although {given} is, and only both together name the rails"),
                        allowed: variable.allowed,
                        advice: format!("{missing}={}, or unset {given}", variable.example),
                    });
                    break;
                }
                (Text::Value(a), Text::Unset) => (Some(a), None, Source::Variable(variable.name)),
                (Text::Unset, Text::Value(b)) => (None, Some(b), Source::Variable(second.name)),
            };
            let (a, b, source) = source;
            return Setting { value: (second.join)(a, b), source };
        }
        Setting { value: default, source: Source::Default }
    }

    /// Reads the variable called `name` as `variable` says. `main` is the setting's first variable.
    fn one<T>(&mut self, variable: &Variable<T>, name: &'static str, main: &str) -> Text<T> {
        let Some(text) = (self.lookup)(name) else { return Text::Unset };
        let wrong = |reason: String| {
            let mut advice = format!("{name}={}", variable.example);
            if name != main {
                advice.push_str(&format!(", or set {main}, which wins"));
            }
            let value = printable(&text.to_string_lossy());
            OptionError { variable: name, value, reason, allowed: variable.allowed, advice }
        };
        if is_blank(&text) {
            let Some(reason) = variable.never_empty else { return Text::Unset };
            self.refuse(wrong(reason.to_owned()));
            return Text::Useless;
        }
        let no_text = || "is not valid UTF-8".to_owned();
        match &variable.parse {
            Parse::Strict(parse) => match text.to_str().map_or_else(|| Err(no_text()), parse) {
                Ok(value) => Text::Value(value),
                Err(reason) => {
                    self.refuse(wrong(reason));
                    Text::Useless
                }
            },
            Parse::Nccl(read) => {
                let Reading { value, note } = text.to_str().map_or_else(|| Reading::default(no_text()), read);
                if let Some(note) = note {
                    self.warn(Warning::Otherwise(wrong(note)));
                }
                value.map_or(Text::Useless, Text::Value)
            }
        }
    }

    /// Records an error once, even if several settings read the variable.
    fn refuse(&mut self, error: OptionError) {
        if self.errors.iter().all(|other| (other.variable, &other.reason) != (error.variable, &error.reason)) {
            self.errors.push(error);
        }
    }

    fn warn(&mut self, warning: Warning) {
        let same = |other: &Warning| match (other, &warning) {
            (Warning::Otherwise(other), Warning::Otherwise(new)) => {
                (other.variable, &other.reason) == (new.variable, &new.reason)
            }
            _ => false,
        };
        if !self.warnings.iter().any(same) {
            self.warnings.push(warning);
        }
    }
}

/// Returns true if a value counts as unset.
pub(crate) fn is_blank(value: &OsStr) -> bool {
    value.to_string_lossy().trim().is_empty()
}

/// The result of a lookup.
enum Text<T> {
    Unset,
    /// Set, but invalid, or a request for the default: the default is used.
    Useless,
    Value(T),
}

/// Writes a setting's value for people.
pub(crate) trait Show {
    fn show(&self) -> String;
}

macro_rules! show_as_written {
    ($($type:ty),*) => { $(impl Show for $type { fn show(&self) -> String { self.to_string() } })* };
}
show_as_written!(crate::Fabric, crate::Weights, crate::Lanes, crate::PortRange, crate::RunDir);
show_as_written!(crate::GidIndices, u32, crate::AdaptiveRouting, crate::Congestion, u8, u16, String);

impl Show for Option<crate::RailFilter> {
    fn show(&self) -> String {
        self.as_ref().map_or_else(|| "any".into(), ToString::to_string)
    }
}

impl Show for Option<AddressRange> {
    fn show(&self) -> String {
        self.as_ref().map_or_else(|| "any".into(), ToString::to_string)
    }
}

impl Show for Option<PolicyName> {
    fn show(&self) -> String {
        self.map_or("auto", PolicyName::name).to_owned()
    }
}

impl Show for Option<Mode> {
    fn show(&self) -> String {
        self.map_or("auto", Mode::name).to_owned()
    }
}

impl Show for Option<Family> {
    fn show(&self) -> String {
        let word = match self {
            None => "auto",
            Some(Family::Ipv4) => "ipv4",
            Some(Family::Ipv6) => "ipv6",
        };
        word.to_owned()
    }
}

/// The numbers are NCCL's.
impl Show for RelaxedOrdering {
    fn show(&self) -> String {
        let number = match self {
            RelaxedOrdering::Off => "0",
            RelaxedOrdering::On => "1",
            RelaxedOrdering::WhereKnown => "2",
        };
        number.to_owned()
    }
}

/// The numbers are NCCL's.
impl Show for DataDirect {
    fn show(&self) -> String {
        let number = match self {
            DataDirect::Off => "0",
            DataDirect::Only => "1",
            DataDirect::Both => "2",
        };
        number.to_owned()
    }
}

impl Show for Option<u8> {
    fn show(&self) -> String {
        self.map_or_else(|| "-1".into(), |number| number.to_string())
    }
}

impl Show for Option<bool> {
    fn show(&self) -> String {
        self.map_or_else(|| "auto".into(), |is_on| is_on.show())
    }
}

impl Show for Option<std::path::PathBuf> {
    fn show(&self) -> String {
        self.as_ref().map_or_else(|| "none".into(), |path| path.display().to_string())
    }
}

impl Show for bool {
    fn show(&self) -> String {
        u8::from(*self).to_string()
    }
}

impl Show for u64 {
    fn show(&self) -> String {
        crate::number::bytes_text(*self)
    }
}

impl Show for std::time::Duration {
    fn show(&self) -> String {
        crate::number::time_text(*self)
    }
}

/// Returns the names of `variables`, for the table.
pub(crate) const fn names<T, const N: usize>(variables: &[Variable<T>]) -> [[Option<&'static str>; 2]; N] {
    let mut names = [[None; 2]; N];
    let mut index = 0;
    while index < N {
        names[index] = variables[index].names();
        index += 1;
    }
    names
}
