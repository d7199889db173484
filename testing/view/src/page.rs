//! The page docs/nccl-view.md.

use std::fmt::Write as _;

use crate::answer::{Answer, Device, FIELDS, Fused, REFUSED};
use crate::differences::{Expected, Found};
use crate::fixture::{Fixture, line};
use crate::host::{MODES, Sides};

/// The width of a line.
const WIDTH: usize = 118;

const HEAD: &str = "\
# NCCL's view of a host

NCCL learns about adapters from a table of C functions: that of its own RDMA transport, or that of a plugin. For a few
hosts this page has the answers of both, field by field: of NCCL's own transport (`ncclNetIb` in the unmodified library
of NCCL 2.32.3, called without a GPU), and of Railweave in `ports` mode, which takes its place. Both run over the
fake libibverbs, in a mount namespace where the host's files are /sys. Nothing here has run on the hosts themselves:
each is made from public descriptions, and says what they do not give (testing/view/fixtures).

`cargo xtask view --fetch` asks both sides and writes this page; without `--fetch` it keeps NCCL's answers
(testing/view/nccl.json) and asks Railweave again. It fails on a difference that is not listed below, and the test run
checks that the page is up to date.
";

const READ: &str = "\
## What was read instead of run

Every value in the tables was obtained by running. Only the choice of the devices to fuse was read, because that code of
NCCL needs a GPU. With the default of NCCL_NET_MERGE_LEVEL, PORT, NCCL calls makeVDevice for the devices of one pciPath,
and for all devices without one, which it attaches to the first CPU (NCCL 2.30.7, `src/graph/topo.cc`, line 1375, and
`src/graph/xml.cc`, lines 1130 and 1152). Groups that only NCCL_NET_FORCE_MERGE would name are marked.

## What NCCL does with virtual devices

These rules are of 2.32.3, seen by running; Railweave follows them.

* The order in which makeVDevice is given the members makes no difference: members of a lower plane come first (none is
  the lowest), and in one plane those of a lower index. The name, the PCI path and the port are the first member's.
* Its plane id is 16384 plus a bit for each plane of its members: bit 0 for none, the next bits for the planes of the
  host in the order of its devices. So two ports without a plane make a device of plane 16385, not of none.
* Its rail id is that of all members, or -1.
";

const SAME: &str = "\
    Every other field is the same, with every setting below: the number and the order of devices, names, PCI paths, \
    guids, port numbers, speeds, kinds of memory, rail and plane ids, members, and which requests to fuse are refused.";

/// Returns the page.
pub(crate) fn markdown(
    fixtures: &[Fixture],
    sides: &Sides,
    found: &Found,
    expected: &Expected,
) -> Result<String, String> {
    let mut page = format!("{HEAD}\n{}\n{READ}", summary(fixtures, sides, found, expected)?);
    for fixture in fixtures {
        page += &host(fixture, sides)?;
    }
    Ok(page)
}

fn summary(fixtures: &[Fixture], sides: &Sides, found: &Found, expected: &Expected) -> Result<String, String> {
    let everywhere: Vec<&str> =
        expected.differs.iter().filter(|rule| rule.hosts.is_none()).map(|rule| rule.field.as_str()).collect();
    let mut text = format!(
        "## Summary\n\n| host | devices | fields that differ | other than {} |\n|---|---|---|---|\n",
        everywhere.join(", ")
    );
    for fixture in fixtures {
        let name = &fixture.name;
        let answer = sides.railweave.get(&fixture.name, &line(&[]))?;
        let fields: Vec<&str> =
            found.rules(&fixture.name).into_iter().map(|rule| expected.differs[rule].field.as_str()).collect();
        let own: Vec<&str> = fields.iter().filter(|field| !everywhere.contains(*field)).copied().collect();
        let title = &fixture.title;
        let (devices, count) = (answer.devices.len(), fields.len());
        // Writing to a string cannot fail.
        let _ = writeln!(text, "| {title} (`{name}`) | {devices} | {count} | {} |", own.join(", "));
    }
    text += "\n";
    text += &wrapped(SAME, "");
    text += "\n## Differences that stay\n\n";
    for rule in &expected.differs {
        let hosts = rule.hosts.as_ref().map_or_else(String::new, |hosts| format!(" ({})", hosts.join(", ")));
        text += &wrapped(&format!("* **{}**{hosts}: {}", rule.field, rule.reason), "  ");
    }
    Ok(text)
}

fn host(fixture: &Fixture, sides: &Sides) -> Result<String, String> {
    let mut text = format!(
        "\n## {}\n\nThe file: [{name}](../testing/view/fixtures/{name}.toml).\n\n",
        fixture.title,
        name = fixture.name
    );
    for source in &fixture.source {
        text += &wrapped(&format!("* {}: {}", source.title, source.gives), "  ");
        let _ = writeln!(text, "  <{}>", source.address);
    }
    text += &wrapped(&format!("* Assumed: {}.", fixture.assumed.join("; ")), "  ");
    let plain = line(&[]);
    for settings in fixture.settings() {
        let settings = line(&settings);
        let (nccl, ours) = (sides.nccl.get(&fixture.name, &settings)?, sides.railweave.get(&fixture.name, &settings)?);
        if settings == plain {
            text += "\n### Devices\n\n";
            text += &whole(nccl, ours);
            for (theirs, ours) in nccl.fused.iter().zip(&ours.fused) {
                let forced = fixture.force_merge.contains(&theirs.of);
                let by = if forced { ", if NCCL_NET_FORCE_MERGE names them" } else { "" };
                let _ = writeln!(text, "\n### {} fused{by}\n", theirs.of.join(" and "));
                text += &table(&[(&theirs.device, &ours.device)], &fields_of(theirs));
            }
        } else {
            text += &variant(&settings, nccl, ours);
        }
    }
    text += "\n### Railweave's other modes\n\n| mode | device | Mbit/s |\n|---|---|---|\n";
    for mode in MODES {
        for device in &sides.railweave.get(&fixture.name, &format!("RAILWEAVE_MODE={mode}"))?.devices {
            let _ = writeln!(text, "| {mode} | {} | {} |", device["name"], device["speed"]);
        }
    }
    Ok(text)
}

/// Returns all fields of all devices.
fn whole(nccl: &Answer, ours: &Answer) -> String {
    if let Some(code) = &nccl.init {
        let nothing = Device::new();
        let pairs: Vec<Pair<'_>> = ours.devices.iter().map(|device| (&nothing, device)).collect();
        return format!("NCCL's transport does not start: `init` returns {code}.\n\n{}", table(&pairs, &FIELDS));
    }
    table(&numbered(nccl, ours), &FIELDS)
}

/// Returns the effects of a setting: the order, the fields of devices that the rails and planes of a list change, and
/// the fused devices.
fn variant(settings: &str, nccl: &Answer, ours: &Answer) -> String {
    let mut text = format!("\n### With a setting\n\n`{settings}`\n\n");
    if let Some(code) = &nccl.init {
        text += &format!("NCCL's transport does not start: {code}. ");
    }
    let names = |answer: &Answer| answer.names().join(", ");
    text += &wrapped(&format!("Railweave's devices: {}.", names(ours)), "");
    if nccl.init.is_some() {
        return text;
    }
    text += &wrapped(
        &if names(nccl) == names(ours) {
            "NCCL's are the same, in the same order.".to_owned()
        } else {
            format!("NCCL's: {}.", names(nccl))
        },
        "",
    );
    if ours.devices.iter().any(|device| device["railId"] != "-1" || device["planeId"] != "-1") {
        text += "\n";
        text += &table(&numbered(nccl, ours), &["name", "railId", "planeId"]);
    }
    for (theirs, ours) in nccl.fused.iter().zip(&ours.fused) {
        let _ = writeln!(text, "\nFused {}:\n", theirs.of.join(" and "));
        let fields = ["name", "speed", "port", "vProps", "railId", "planeId", REFUSED];
        let shown = |field: &&str| theirs.device.contains_key(*field) || ours.device.contains_key(*field);
        let fields: Vec<&str> = fields.into_iter().filter(shown).collect();
        text += &table(&[(&theirs.device, &ours.device)], &fields);
    }
    text
}

fn fields_of(fused: &Fused) -> Vec<&'static str> {
    if fused.device.contains_key(REFUSED) { vec![REFUSED] } else { FIELDS.to_vec() }
}

/// A device of NCCL's, and that of the same number of Railweave.
type Pair<'a> = (&'a Device, &'a Device);

fn numbered<'a>(nccl: &'a Answer, ours: &'a Answer) -> Vec<Pair<'a>> {
    nccl.devices.iter().zip(&ours.devices).collect()
}

/// Returns a table of fields. Devices in a row with the same value share a line; a value that both sides have is shown
/// once.
fn table(devices: &[Pair<'_>], fields: &[&str]) -> String {
    let is_one = devices.len() == 1;
    let mut text = if is_one {
        "| field | NCCL | Railweave |\n|---|---|---|\n"
    } else {
        "| field | devices | NCCL | Railweave |\n|---|---|---|---|\n"
    }
    .to_owned();
    let none = "-".to_owned();
    for field in fields {
        let values: Vec<(&String, &String)> = devices
            .iter()
            .map(|(theirs, ours)| (theirs.get(*field).unwrap_or(&none), ours.get(*field).unwrap_or(&none)))
            .collect();
        let mut first = 0;
        while first < values.len() {
            let next = (first..values.len()).find(|index| values[*index] != values[first]).unwrap_or(values.len());
            let which = match (next - first, values.len()) {
                (_, 1) => String::new(),
                (count, all) if count == all => "all | ".to_owned(),
                (1, _) => format!("{first} | "),
                _ => format!("{first} to {} | ", next - 1),
            };
            let (theirs, ours) = values[first];
            let ours = if theirs == ours { "same" } else { ours };
            let _ = writeln!(text, "| {field} | {which}{theirs} | {ours} |");
            first = next;
        }
    }
    text
}

/// Returns a paragraph in lines of at most [`WIDTH`] columns, those after the first with an indent.
fn wrapped(paragraph: &str, indent: &str) -> String {
    let (mut text, mut width) = (String::new(), 0);
    for word in paragraph.split_whitespace() {
        let length = word.chars().count();
        if width > 0 && width + 1 + length > WIDTH {
            text += "\n";
            text += indent;
            width = indent.len();
        } else if width > 0 {
            text += " ";
            width += 1;
        }
        text += word;
        width += length;
    }
    text + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(name: &str, speed: &str) -> Device {
        [("name", name), ("speed", speed)].map(|(field, value)| (field.to_owned(), value.to_owned())).into()
    }

    #[test]
    fn equal_values_share_a_line_and_unlike_ones_stand_side_by_side() {
        let devices = [device("a", "1"), device("b", "1"), device("c", "2")];
        let ours = [device("a", "1"), device("b", "1"), device("d", "2")];
        let pairs: Vec<Pair<'_>> = devices.iter().zip(&ours).collect();
        let text = table(&pairs, &["name", "speed"]);
        let lines: Vec<&str> = text.lines().skip(2).collect();
        assert_eq!(
            lines,
            [
                "| name | 0 | a | same |",
                "| name | 1 | b | same |",
                "| name | 2 | c | d |",
                "| speed | 0 to 1 | 1 | same |",
                "| speed | 2 | 2 | same |"
            ]
        );
        assert!(table(&pairs[..2], &["speed"]).ends_with("| speed | all | 1 | same |\n"));
        assert!(table(&pairs[2..], &["none"]).ends_with("| none | - | same |\n"), "one device alone has no number");
    }

    #[test]
    fn paragraphs_are_wrapped_between_words() {
        let text = wrapped(&"word ".repeat(40), "  ");
        assert!(text.lines().all(|line| line.len() <= WIDTH), "{text}");
        assert!(text.lines().count() == 2 && text.contains("\n  word"), "{text}");
    }
}
