//! Settings from the environment of a process.

use crate::entry::Entry;
use crate::error::{OptionErrors, Warning, closest, printable};
use crate::nccl;
use crate::setting::is_blank;
use crate::table::{Options, TABLE};
use std::collections::HashMap;
use std::ffi::OsString;

impl Options {
    /// Reads every setting from `variables`, as an environment lists them. Warns about each `RAILWEAVE_*` name among
    /// them that no setting reads, and in one [`Warning`] about the variables of NCCL's own IB transport that have no
    /// effect here.
    ///
    /// # Errors
    /// Those of [`Options::parse`].
    pub fn from_variables<K: Into<OsString>, V: Into<OsString>>(
        variables: impl IntoIterator<Item = (K, V)>,
    ) -> Result<(Options, Vec<Warning>), OptionErrors> {
        let mut known = HashMap::new();
        let (mut unknown, mut without_effect) = (Vec::new(), Vec::new());
        for (name, value) in variables {
            let (name, value) = (name.into(), value.into());
            match TABLE.iter().flat_map(Entry::all_variables).find(|known| name == *known) {
                Some(name) => drop(known.insert(name, value)),
                None if may_be_meant(&name.to_string_lossy()) => unknown.push(name),
                None if nccl::is_without_effect(&name.to_string_lossy()) && !is_blank(&value) => {
                    without_effect.push(printable(&name.to_string_lossy()));
                }
                None => {}
            }
        }
        unknown.sort();
        let (options, mut warnings) = Options::parse(|name| known.get(name).cloned())?;
        warnings.extend(unknown.iter().map(|name| {
            let name = name.to_string_lossy();
            let closest = closest(&name, TABLE.iter().map(Entry::variable));
            Warning::Unknown { variable: printable(&name), closest }
        }));
        if !without_effect.is_empty() {
            without_effect.sort();
            warnings.push(Warning::WithoutEffect(without_effect));
        }
        Ok((options, warnings))
    }

    /// Reads every setting from the environment of this process.
    ///
    /// # Errors
    /// Those of [`Options::parse`].
    pub fn from_env() -> Result<(Options, Vec<Warning>), OptionErrors> {
        Options::from_variables(std::env::vars_os())
    }
}

impl Default for Options {
    /// Returns the settings for an environment without variables.
    fn default() -> Options {
        match Options::parse(|_| None) {
            Ok((options, _)) => options,
            Err(errors) => unreachable!("nothing is set, so nothing is wrong: {errors}"),
        }
    }
}

/// Returns true if `name` is probably meant as one of Railweave's settings. `RAILWEAVE_TEST_*` is for its tests.
fn may_be_meant(name: &str) -> bool {
    name.starts_with("RAILWEAVE_") && !name.starts_with("RAILWEAVE_TEST_")
}
