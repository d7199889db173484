//! One setting: its value, where the value came from, and how its variables are read.

use crate::error::{OptionError, Warning, printable};
use std::ffi::OsString;
use std::fmt;

/// A value and where it came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting<T> {
    /// The value to use.
    pub value: T,
    /// Where it came from, for the log.
    pub source: Source,
}

/// Where a value came from.
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

/// Turns text into a value; the error is the end of a sentence that begins with the text.
type Parse<T> = fn(&str) -> Result<T, String>;

/// One variable of a setting, or two that make one value together.
pub(crate) struct Variable<T> {
    name: &'static str,
    allowed: &'static str,
    example: &'static str,
    parse: Parse<T>,
    second: Option<Second<T>>,
    note: Option<fn(&str) -> Option<String>>,
}

struct Second<T> {
    name: &'static str,
    join: fn(Option<T>, Option<T>) -> T,
}

/// The variable `name`: what it may hold, a value to recommend, and how its text is read.
pub(crate) const fn variable<T>(
    name: &'static str,
    allowed: &'static str,
    example: &'static str,
    parse: Parse<T>,
) -> Variable<T> {
    Variable { name, allowed, example, parse, second: None, note: None }
}

impl<T> Variable<T> {
    /// With a second variable of the same kind; `join` makes one value of what is set.
    pub(crate) const fn and(self, name: &'static str, join: fn(Option<T>, Option<T>) -> T) -> Variable<T> {
        Variable { second: Some(Second { name, join }), ..self }
    }

    /// With a warning for values that `note` has something to say about.
    pub(crate) const fn noting(self, note: fn(&str) -> Option<String>) -> Variable<T> {
        Variable { note: Some(note), ..self }
    }

    /// The variable's name, or both names.
    pub(crate) const fn names(&self) -> [Option<&'static str>; 2] {
        match &self.second {
            Some(second) => [Some(self.name), Some(second.name)],
            None => [Some(self.name), None],
        }
    }

    /// What the variable may hold, for people.
    pub(crate) const fn allowed(&self) -> &'static str {
        self.allowed
    }

    /// A value worth trying.
    pub(crate) const fn example(&self) -> &'static str {
        self.example
    }
}

/// Reads settings through a lookup and collects what is wrong with them.
pub(crate) struct Reader<L> {
    pub(crate) lookup: L,
    pub(crate) errors: Vec<OptionError>,
    pub(crate) warnings: Vec<Warning>,
}

impl<L: Fn(&str) -> Option<OsString>> Reader<L> {
    /// The value of the first of `variables` that is set, else `default`. A value that cannot be used is noted as an
    /// error, and the default stands in for it, so that the other settings are still read.
    pub(crate) fn read<T>(&mut self, variables: &[Variable<T>], default: T) -> Setting<T> {
        let main = variables.first().map_or("", |variable| variable.name);
        for variable in variables {
            let first = self.one(variable, variable.name, main);
            let Some(second) = &variable.second else {
                match first {
                    Text::Unset => continue,
                    Text::Wrong => break,
                    Text::Value(value) => return Setting { value, source: Source::Variable(variable.name) },
                }
            };
            let source = match (first, self.one(variable, second.name, main)) {
                (Text::Unset, Text::Unset) => continue,
                (Text::Wrong, _) | (_, Text::Wrong) => break,
                (Text::Value(a), Text::Value(b)) => (Some(a), Some(b), Source::Variables(variable.name, second.name)),
                (Text::Value(a), Text::Unset) => (Some(a), None, Source::Variable(variable.name)),
                (Text::Unset, Text::Value(b)) => (None, Some(b), Source::Variable(second.name)),
            };
            let (a, b, source) = source;
            return Setting { value: (second.join)(a, b), source };
        }
        Setting { value: default, source: Source::Default }
    }

    /// What the variable called `name` holds, read as `variable` says. `main` is the setting's first variable.
    fn one<T>(&mut self, variable: &Variable<T>, name: &'static str, main: &str) -> Text<T> {
        let Some(text) = (self.lookup)(name) else { return Text::Unset };
        let lossy = text.to_string_lossy();
        if lossy.trim().is_empty() {
            return Text::Unset;
        }
        let parsed = match text.to_str() {
            Some(text) => (variable.parse)(text),
            None => Err("is not valid UTF-8".into()),
        };
        match parsed {
            Ok(value) => {
                if let Some(note) = variable.note.and_then(|note| note(&lossy)) {
                    self.warnings.push(Warning::Limited { variable: name, value: printable(&lossy), note });
                }
                Text::Value(value)
            }
            Err(reason) => {
                let mut advice = format!("{name}={}", variable.example);
                if name != main {
                    advice.push_str(&format!(", or set {main}, which wins"));
                }
                // Several settings may read one variable; its mistake is one.
                if self.errors.iter().all(|error| (error.variable, &error.reason) != (name, &reason)) {
                    let (value, allowed) = (printable(&lossy), variable.allowed);
                    self.errors.push(OptionError { variable: name, value, reason, allowed, advice });
                }
                Text::Wrong
            }
        }
    }
}

/// What a lookup found.
enum Text<T> {
    Unset,
    Wrong,
    Value(T),
}

/// How a setting's value is shown to people.
pub(crate) trait Show {
    fn show(&self) -> String;
}

macro_rules! show_as_written {
    ($($type:ty),*) => { $(impl Show for $type { fn show(&self) -> String { self.to_string() } })* };
}
show_as_written!(crate::Fabric, crate::Mode, crate::Weights, crate::Lanes, crate::PortRange);
show_as_written!(
    crate::GidIndices,
    crate::AddressFamily,
    crate::RelaxedOrdering,
    crate::AdaptiveRouting,
    crate::Congestion,
    u8,
    u16,
    String
);

impl Show for Option<crate::RailFilter> {
    fn show(&self) -> String {
        self.as_ref().map_or_else(|| "any".into(), ToString::to_string)
    }
}

impl Show for Option<crate::AddressRange> {
    fn show(&self) -> String {
        self.as_ref().map_or_else(|| "any".into(), ToString::to_string)
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
