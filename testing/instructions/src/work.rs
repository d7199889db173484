//! The work that a message gives each rail's device, counted by the fake libibverbs and reported by the bench.

use serde::{Deserialize, Serialize};

/// The work of one device for one message, for both ends together; the bench's `--json` has the same names.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub(crate) struct Work {
    /// The device's name.
    pub(crate) device: String,
    /// Work requests posted to send queues.
    pub(crate) sends: f64,
    /// The number of these that are writes with an immediate.
    pub(crate) sends_with_immediate: f64,
    /// Receives posted.
    pub(crate) receives: f64,
    /// Completions polled.
    pub(crate) completions: f64,
}

/// A column of a table: its name, and its number for a device.
pub(crate) type Column = (&'static str, fn(&Work) -> f64);

/// The columns of the table.
pub(crate) const COLUMNS: [Column; 4] = [
    ("work requests", |work| work.sends),
    ("of them with immediate", |work| work.sends_with_immediate),
    ("receives", |work| work.receives),
    ("completions", |work| work.completions),
];

impl Work {
    /// Reads the bench's `--json`: the work of each device.
    ///
    /// # Errors
    /// A sentence, if the text is of another kind or the fake libibverbs was missing.
    pub(crate) fn read(json: &[u8]) -> Result<Vec<Self>, String> {
        let outcome: Outcome =
            serde_json::from_slice(json).map_err(|error| format!("the bench's output cannot be read: {error}"))?;
        outcome.devices.ok_or_else(|| {
            "the bench found no fake libibverbs that counts; does NCCL_IBVERBS_LIB name another library?".to_owned()
        })
    }
}

/// Returns one column's cell: a number for each rail.
pub(crate) fn cell(works: &[Work], (_, number): Column) -> String {
    works.iter().map(|work| format!("{:.2}", number(work))).collect::<Vec<_>>().join(" + ")
}

/// The part of the bench's `--json` that is read here.
#[derive(Deserialize)]
struct Outcome {
    devices: Option<Vec<Work>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRINTED: &str = r#"{"plugin": "railweave", "devices": [
        {"device": "sim0", "sends": 1.5, "sends_with_immediate": 1.0, "receives": 0.25, "completions": 2.016},
        {"device": "sim1", "sends": 0.5, "sends_with_immediate": 0.0, "receives": 0.0, "completions": 0.016}]}"#;

    #[test]
    fn the_work_of_each_device_is_read_and_shown() {
        let works = Work::read(PRINTED.as_bytes()).unwrap();
        assert_eq!(works.iter().map(|work| work.device.as_str()).collect::<Vec<_>>(), ["sim0", "sim1"]);
        let cells = COLUMNS.map(|column| cell(&works, column));
        assert_eq!(cells, ["1.50 + 0.50", "1.00 + 0.00", "0.25 + 0.00", "2.02 + 0.02"]);
        assert_eq!(cell(&[], COLUMNS[0]), "");
    }

    #[test]
    fn without_the_fake_there_is_no_work_to_read() {
        let error = |text: &str| Work::read(text.as_bytes()).unwrap_err();
        assert!(error(r#"{"plugin": "railweave", "devices": null}"#).contains("found no fake libibverbs"));
        assert!(error("railweave: no").contains("cannot be read"));
        assert!(error(&PRINTED.replace("receives", "received")).contains("missing field `receives`"));
    }
}
