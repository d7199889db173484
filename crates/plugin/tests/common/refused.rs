//! Refusals of `init`, and the table of them (docs/refusals.md).

use std::fs::OpenOptions;
use std::io::Write;
use std::time::{Duration, Instant};

use railweave_abi::NcclResult;
use railweave_nccl_host::{NetError, Plugin};

use super::warnings;

/// The time in which a process learns that its configuration is refused.
const LIMIT: Duration = Duration::from_secs(1);

/// Initialises the plugin, which must refuse the settings as wrong usage in under a second, and with one line. Returns
/// the line.
pub(crate) fn init_refused(plugin: &Plugin, settings: &[(&str, &str)]) -> String {
    let (before, begin) = (warnings().len(), Instant::now());
    let refused = plugin.init(1, None).err();
    let took = begin.elapsed();
    assert!(matches!(refused, Some(NetError::Call { code: NcclResult::INVALID_USAGE, .. })), "{refused:?}");
    assert!(took < LIMIT, "{settings:?} took {took:?}");
    let said = warnings().split_off(before);
    assert_eq!(said.len(), 1, "{said:?}");
    tell(settings, &said[0]);
    said.into_iter().next().unwrap_or_default()
}

/// Adds a refusal to the table in the file that RAILWEAVE_TEST_TABLE names.
fn tell(settings: &[(&str, &str)], line: &str) {
    let Some(path) = std::env::var_os("RAILWEAVE_TEST_TABLE") else { return };
    let settings: Vec<_> = settings.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let line = line.replace("NET/Railweave : init: ", "");
    let row = format!("* `{}`: {line}\n", settings.join(" ")).replace(env!("CARGO_TARGET_TMPDIR"), "/folder");
    let mut file = OpenOptions::new().append(true).create(true).open(path).expect("the table can be written");
    file.write_all(row.as_bytes()).expect("the table can be written");
}
