//! Whoever takes orders for a run dir.

use super::hands::{Order, Standing, Steerer};
use railweave_telemetry::RunDir;

/// The agent or the policy file of a run dir.
pub(super) struct AtRunDir {
    run_dir: RunDir,
}

impl AtRunDir {
    pub(super) fn new(run_dir: RunDir) -> Self {
        Self { run_dir }
    }
}

impl Steerer for AtRunDir {
    fn order(&mut self, _order: &Order) -> Result<String, String> {
        Err(format!("nobody takes orders for {}", self.run_dir.path().display()))
    }

    fn standing(&mut self) -> Result<Standing, String> {
        Ok(Standing { who: "no agent".to_owned(), ..Standing::default() })
    }
}
