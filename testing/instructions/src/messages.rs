//! Instructions per message, ours next to those of NCCL's own IB transport (docs/performance.md).
//!
//! Both ends are in one process, over the fake libibverbs, and callgrind counts: neither a wire nor the load of this
//! machine changes the figures.

use crate::cost::Cost;
use crate::counter::{Case, Counter};
use crate::in_process::Watch;
use crate::tools::Tools;
use crate::work;
use clap::Args;
use serde::Serialize;
use std::path::PathBuf;

/// The numbers of rails of the cases.
const RAILS: [usize; 2] = [1, 2];

/// Their numbers of messages in flight.
const IN_FLIGHT: [usize; 2] = [1, 8];

/// Their message sizes: name, bytes, and the number of messages that are counted.
///
/// The number is a multiple of 512, so that the average has the right share of work that is done once per round of the
/// slots, of the sender's ring or of the posted receives. There are fewer large messages, because the fake libibverbs
/// copies them.
const SIZES: [(&str, usize, u32); 2] = [("8 B", 8, 5120), ("512 KiB", 512 << 10, 512)];

/// The arguments of `messages`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    tools: Tools,
    /// The program valgrind, which counts
    #[arg(long, value_name = "PROGRAM")]
    valgrind: PathBuf,
    /// List this many functions of ours for each case
    #[arg(long, value_name = "N", default_value_t = 0)]
    functions: usize,
    /// Count also what a message of ours costs while a profiler or the trace watches it
    #[arg(long, conflicts_with = "json")]
    watched: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Counts, and prints the results.
pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
    let counter = Counter::new(&arguments.valgrind, &arguments.tools)?;
    let mut rows = Vec::new();
    for case in cases() {
        let row = Row::count(&counter, &case, arguments.functions)?;
        eprintln!("counted {}", row.title());
        rows.push(row);
    }
    if arguments.json {
        let report =
            serde_json::to_string_pretty(&Report { nccl: counter.nccl().map(|nccl| nccl.library().to_owned()), rows });
        println!("{}", report.map_err(|error| error.to_string())?);
    } else {
        print!("{}\n{}", table(&rows), table_of_work(&rows));
        rows.iter().for_each(|row| print!("{}", row.functions()));
        if arguments.watched {
            print!("\n{}", watched(&counter, &rows)?);
        }
    }
    Ok(())
}

/// Counts each case of these rows again, under each kind of profiler. Returns the instructions in Markdown.
fn watched(counter: &Counter, rows: &[Row]) -> Result<String, String> {
    let mut text = "\
| | nobody | a profiler that wants nothing | a profiler that wants all | the trace |
|---|---|---|---|---|
"
    .to_owned();
    for (case, row) in cases().zip(rows) {
        let cost = |watch| Ok::<_, String>(counter.count(counter.railweave(), &Case { watch, ..case })?.instructions());
        let (masked, events, trace) = (cost(Watch::Masked)?, cost(Watch::Events)?, cost(Watch::Trace)?);
        let nobody = row.railweave.instructions();
        text += &format!("| {} | {nobody:.0} | {masked:.0} | {events:.0} | {trace:.0} |\n", row.title());
        eprintln!("counted {}, watched", row.title());
    }
    Ok(text)
}

/// Returns all cases, in the order of the table.
fn cases() -> impl Iterator<Item = Case> {
    RAILS.into_iter().flat_map(|rails| {
        SIZES.into_iter().flat_map(move |(_, message_bytes, messages)| {
            IN_FLIGHT.into_iter().map(move |in_flight| Case {
                rails,
                message_bytes,
                in_flight,
                messages,
                watch: Watch::Nobody,
            })
        })
    })
}

/// The output with `--json`.
#[derive(Debug, Serialize)]
struct Report {
    /// NCCL's library, if it was counted too.
    nccl: Option<PathBuf>,
    rows: Vec<Row>,
}

/// The result of one case.
#[derive(Debug, Serialize)]
struct Row {
    rails: usize,
    message_bytes: usize,
    in_flight: usize,
    railweave: Cost,
    nccl: Option<Cost>,
    /// Railweave's instructions divided by NCCL's, both with those of the libraries that they call.
    ratio: Option<f64>,
}

impl Row {
    fn count(counter: &Counter, case: &Case, functions: usize) -> Result<Self, String> {
        let mut railweave = counter.count(counter.railweave(), case)?;
        railweave.functions.truncate(functions);
        let mut nccl = counter.nccl().map(|nccl| counter.count(nccl, case)).transpose()?;
        if let Some(nccl) = &mut nccl {
            nccl.functions.clear();
        }
        let ratio = nccl.as_ref().map(|nccl| railweave.instructions() / nccl.instructions());
        let Case { rails, message_bytes, in_flight, .. } = *case;
        Ok(Self { rails, message_bytes, in_flight, railweave, nccl, ratio })
    }

    fn title(&self) -> String {
        let rails = if self.rails == 1 { "one rail".to_owned() } else { format!("{} rails", self.rails) };
        let named = SIZES.iter().find(|(_, bytes, _)| *bytes == self.message_bytes);
        let size = named.map_or_else(|| format!("{} B", self.message_bytes), |(name, ..)| (*name).to_owned());
        format!("{rails}, {size}, {} in flight", self.in_flight)
    }

    /// Returns the listed functions, a line each under the row's title.
    fn functions(&self) -> String {
        let functions = &self.railweave.functions;
        if functions.is_empty() {
            return String::new();
        }
        let lines = functions.iter().map(|function| format!("{:>10.1}  {}\n", function.own, function.name));
        format!("\n{}:\n{}", self.title(), lines.collect::<String>())
    }
}

/// Returns the rows in Markdown, as docs/performance.md shows them.
fn table(rows: &[Row]) -> String {
    let mut text = "\
| | Railweave | of which libc | NCCL | of which libc | ratio | calls of verbs, Railweave | NCCL |
|---|---|---|---|---|---|---|---|
"
    .to_owned();
    for row in rows {
        let (own, own_verbs) = cells(Some(&row.railweave));
        let (nccl, nccl_verbs) = cells(row.nccl.as_ref());
        let ratio = row.ratio.map(|ratio| format!("{ratio:.2}")).unwrap_or_default();
        text += &format!("| {} |{own}|{nccl}| {ratio} |{own_verbs}|{nccl_verbs}|\n", row.title());
    }
    text
}

/// Returns the cells of one transport: its instructions with those of libraries among them, and its calls of verbs.
fn cells(cost: Option<&Cost>) -> (String, String) {
    let Some(cost) = cost else { return (" | ".to_owned(), " ".to_owned()) };
    let Cost { libraries, send_posts, receive_posts, polls, .. } = cost;
    (
        format!(" {:.0} | {libraries:.0} ", cost.instructions()),
        format!(" {send_posts:.2} + {receive_posts:.2} + {polls:.2} "),
    )
}

/// Returns the work of each rail's device in Markdown, a line per transport.
fn table_of_work(rows: &[Row]) -> String {
    let heads = work::COLUMNS.map(|(name, _)| format!(" {name} |"));
    let mut text = format!("| | transport |{}\n|{}\n", heads.concat(), "---|".repeat(2 + heads.len()));
    for row in rows {
        let costs = [("Railweave", Some(&row.railweave)), ("NCCL", row.nccl.as_ref())];
        for (transport, cost) in costs.into_iter().filter_map(|(transport, cost)| Some((transport, cost?))) {
            let cells = work::COLUMNS.map(|column| format!(" {} |", work::cell(&cost.devices, column)));
            text += &format!("| {} | {transport} |{}\n", row.title(), cells.concat());
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::Function;

    #[test]
    fn every_case_is_of_whole_rounds() {
        let cases: Vec<Case> = cases().collect();
        assert_eq!(cases.len(), 8);
        assert!(cases.iter().all(|case| case.messages.is_multiple_of(512)));
    }

    fn device(name: &str, sends: f64) -> work::Work {
        work::Work { device: name.to_owned(), sends, sends_with_immediate: 1.0, receives: 0.03, completions: 2.0 }
    }

    fn row(nccl: bool) -> Row {
        let cost = |own| Cost {
            own,
            libraries: 20.4,
            send_posts: 2.0,
            receive_posts: 0.03,
            polls: 2.25,
            devices: vec![device("sim0", 1.5), device("sim1", 0.5)],
            functions: vec![Function { name: "plugin::isend".to_owned(), own: 71.25 }],
        };
        let ratio = nccl.then_some(0.5);
        let nccl = nccl.then(|| Cost { functions: Vec::new(), ..cost(2000.0) });
        Row { rails: 2, message_bytes: 512 << 10, in_flight: 8, railweave: cost(1000.4), nccl, ratio }
    }

    #[test]
    fn rows_are_lines_of_a_table_with_and_without_nccl() {
        let text = table(&[row(true), row(false)]);
        let lines: Vec<&str> = text.lines().collect();
        let cells: Vec<usize> = lines.iter().map(|line| line.matches('|').count()).collect();
        assert_eq!(cells, [9; 4], "{text}");
        assert_eq!(
            lines[2],
            "| 2 rails, 512 KiB, 8 in flight | 1021 | 20 | 2020 | 20 | 0.50 | 2.00 + 0.03 + 2.25 | 2.00 + 0.03 + 2.25 |"
        );
        let text = table_of_work(&[row(true), row(false)]);
        let cells: Vec<usize> = text.lines().map(|line| line.matches('|').count()).collect();
        assert_eq!(cells, [7; 5], "with NCCL's line for the first row alone: {text}");
        for transport in ["Railweave", "NCCL"] {
            let line = format!("\n| 2 rails, 512 KiB, 8 in flight | {transport} | 1.50 + 0.50 | 1.00 + 1.00 |");
            assert!(text.contains(&line), "{text}");
        }
        assert_eq!(row(true).functions(), "\n2 rails, 512 KiB, 8 in flight:\n      71.2  plugin::isend\n");
    }

    #[test]
    fn the_json_names_everything() {
        let report = Report { nccl: Some("libnccl.so.2".into()), rows: vec![row(true), row(false)] };
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["nccl"], "libnccl.so.2");
        assert_eq!(json["rows"][0]["railweave"]["functions"][0]["name"], "plugin::isend");
        assert_eq!(json["rows"][0]["railweave"]["devices"][1]["sends"], 0.5);
        assert_eq!((&json["rows"][0]["nccl"]["polls"], &json["rows"][0]["ratio"]), (&2.25.into(), &0.5.into()));
        assert!(json["rows"][0]["nccl"].get("functions").is_none() && json["rows"][1]["nccl"].is_null(), "{json}");
    }
}
