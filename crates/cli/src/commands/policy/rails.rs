//! Rails and the orders for them, as people and programs read it.

use crate::orders::effect::{Effects, Group, Part, Place, Rails, Unsteered};
use crate::output::{printable, table};
use comfy_table::Table;
use serde::Serialize;

/// The part of the data that a rail has to carry.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct PartView {
    /// `drain`, `weights`, `policy` or `settings`.
    by: &'static str,
    /// The part of the data from 0 to 1, if the order says it.
    share: Option<f64>,
    /// The policy, if `by` is that.
    policy: Option<&'static str>,
}

impl From<Part> for PartView {
    fn from(part: Part) -> Self {
        let policy = if let Part::Policy(policy) = part { Some(policy) } else { None };
        Self { by: part.by(), share: part.ratio(), policy }
    }
}

/// Rails with one number, port and order.
#[derive(Debug, Serialize)]
pub(super) struct RailView {
    job: String,
    peer_host: String,
    device: String,
    direction: &'static str,
    rail: u8,
    /// The name of this end's port; `None` if unknown.
    port: Option<String>,
    connections: u32,
    /// The part of the data that they carry now, if it is known.
    share_now: Option<f64>,
    before: PartView,
    /// `None` if nothing changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    after: Option<PartView>,
}

impl RailView {
    pub(super) fn new((place, rails): (&Place, &Rails)) -> Self {
        let Place { group, rail, port, before, after } = place;
        Self {
            job: group.job.clone(),
            peer_host: group.peer_host.clone(),
            device: group.device.clone(),
            direction: group.direction,
            rail: *rail,
            port: Some(port.clone()).filter(|port| !port.is_empty()),
            connections: rails.count,
            share_now: rails.share(),
            before: (*before).into(),
            after: (before != after).then(|| (*after).into()),
        }
    }
}

/// A process that follows its settings, and no files.
#[derive(Debug, Serialize)]
pub(super) struct UnsteeredView {
    host: String,
    pid: u32,
    rank: Option<u32>,
    job: String,
    connections: u32,
    policy: &'static str,
}

impl From<&Unsteered> for UnsteeredView {
    fn from(process: &Unsteered) -> Self {
        let Unsteered { host, pid, rank, job, connections, policy } = process;
        let (host, job) = (host.clone(), job.clone());
        Self { host, pid: *pid, rank: *rank, job, connections: *connections, policy }
    }
}

/// Returns the sentence about a process that follows no files.
pub(super) fn unsteered(process: &UnsteeredView) -> String {
    let UnsteeredView { host, pid, connections, policy, .. } = process;
    printable(&format!(
        "process {pid} on {host} does not follow orders with {connections} connections: RAILWEAVE_POLICY or \
         RAILWEAVE_WEIGHTS has them follow the policy {policy}; try RAILWEAVE_POLICY=agent there"
    ))
}

/// Returns the sentence about connections that go on using a port.
pub(super) fn kept((group, count): (&Group, &u32), port: &str) -> String {
    let Group { job, peer_host, device, direction } = group;
    let job = if job.is_empty() { "unknown" } else { job };
    printable(&format!(
        "{count} connections of job {job} go on using port {port} ({direction}, {peer_host}, by {device}): they have \
         no other, or a rule that names rails itself comes first"
    ))
}

/// Returns a table with a row for each of these rails, and words of `say` in its last column; `None` without rails.
pub(super) fn rails<'a>(
    rails: impl Iterator<Item = (&'a Place, &'a Rails)>,
    last: &str,
    say: impl Fn(&Place, &Rails) -> String,
) -> Option<Table> {
    let mut shown = table(&["job", "peer", "device", "rail", "connections", last], 6);
    let mut is_empty = true;
    for (place, rails) in rails {
        is_empty = false;
        let or_unknown = |text: &str| if text.is_empty() { "unknown".to_owned() } else { printable(text) };
        let Place { group, rail, port, .. } = place;
        let port = if port.is_empty() { String::new() } else { format!(": {port}") };
        shown.add_row([
            or_unknown(&group.job),
            or_unknown(&group.peer_host),
            or_unknown(&group.device),
            printable(&format!("{rail}{port}")),
            format!("{} {}", rails.count, group.direction),
            say(place, rails),
        ]);
    }
    (!is_empty).then_some(shown)
}

/// Returns the words for what a rail carries, with its share now if the order does not say one.
pub(super) fn carries(part: Part, rails: &Rails) -> String {
    match rails.share().filter(|_| part.ratio().is_none()) {
        Some(share) => format!("{} (share {:.0} % now)", part.words(), share * 100.0),
        None => part.words(),
    }
}

/// Returns the sentence about rails that were not looked at, if there are any.
pub(super) fn left_out(effects: &Effects) -> Option<String> {
    (effects.left_out > 0).then(|| format!("{} more rails are left out; allowed: 100000 in all", effects.left_out))
}
