//! The profiler of a rank, found as NCCL finds it: in the library that NCCL_PROFILER_PLUGIN names, otherwise in that of
//! the net plugin.

use crate::output::printable;
use railweave_nccl_host::profiler::{CommunicatorInfo, Profiler, ProfilerPlugin};
use std::ffi::{OsStr, OsString};
use std::path::Path;

/// NCCL's variable with the path of a profiler, or `none`.
const VARIABLE: &str = "NCCL_PROFILER_PLUGIN";

/// Loads the profiler for ranks whose net plugin is in the file `net`; `None` if there is none. As in NCCL, a profiler
/// that cannot be loaded does not keep a rank from its work; standard error says so.
pub(crate) fn load(net: &Path) -> Option<ProfilerPlugin> {
    load_named(std::env::var_os(VARIABLE).as_deref(), net, &|text| eprintln!("railweave: {text}"))
}

fn load_named(named: Option<&OsStr>, net: &Path, warn: &dyn Fn(&str)) -> Option<ProfilerPlugin> {
    match named.filter(|named| !named.is_empty()) {
        Some(none) if none.eq_ignore_ascii_case("none") => None,
        Some(named) => ProfilerPlugin::load(Path::new(named), None)
            .inspect_err(|error| {
                let named = OsString::from(named);
                warn(&printable(&format!(
                    "{VARIABLE}={}: {error}; the ranks go on without a profiler",
                    named.display()
                )));
            })
            .ok(),
        // Most net plugins have none.
        None => ProfilerPlugin::load(net, None).ok(),
    }
}

/// Starts the profiler for this rank of a communicator of `ranks`.
pub(crate) fn start(plugin: &ProfilerPlugin, comm_id: u64, (rank, ranks): (usize, usize)) -> Option<Profiler> {
    let number = |value: usize| i32::try_from(value).unwrap_or(i32::MAX);
    let (rank, ranks) = (number(rank), number(ranks));
    let info = CommunicatorInfo { name: None, comm_id, hosts: ranks, ranks, rank };
    plugin.init(info).inspect_err(|error| eprintln!("railweave: {error}; this rank goes on without a profiler")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn a_profiler_that_cannot_be_loaded_is_said_and_none_is_not() {
        let said = RefCell::new(Vec::new());
        let load = |named: &str| {
            load_named(Some(OsStr::new(named)), Path::new("/nowhere"), &|text| {
                said.borrow_mut().push(text.to_owned());
            })
        };
        assert!(load("none").is_none() && load("NONE").is_none() && load("").is_none());
        assert!(said.borrow().is_empty(), "{said:?}");
        assert!(load("/no/such.so").is_none());
        assert!(said.borrow()[0].starts_with("NCCL_PROFILER_PLUGIN=/no/such.so: "), "{said:?}");
    }
}
