//! The drawing of NCCL's events: collectives, the calls of them, and what its proxy does for them.

use super::canvas::{Canvas, flow};
use super::sink::{Content, Fact, Slice, Value};
use crate::rank::{Event, Facts, Rank};
use crate::timeline::Timeline;
use railweave_trace::Kind;
use std::collections::{BTreeMap, HashMap};
use std::io;

/// The most steps to which a collective leads by arrows. A collective of many messages has thousands, which no viewer
/// shows legibly.
const MOST_FLOWS: usize = 256;

/// The arrows from collectives to their steps.
pub(super) struct Flows(HashMap<(usize, u64), Vec<u64>>);

impl Flows {
    pub(super) fn find(timeline: &Timeline) -> Self {
        let mut flows: HashMap<_, Vec<u64>> = HashMap::new();
        for (rank, of_rank) in timeline.ranks.iter().enumerate() {
            let steps = of_rank.events.iter().filter(|(_, event)| event.kind == Kind::ProxyStep);
            let mut steps: Vec<_> = steps.map(|(id, event)| (event.begin, *id)).collect();
            steps.sort_unstable();
            for (_, id) in steps {
                if let Some(collective) = timeline.collective(rank, id) {
                    let of_collective = flows.entry(collective).or_default();
                    if of_collective.len() < MOST_FLOWS {
                        of_collective.push(of_event(rank, id));
                    }
                }
            }
        }
        Self(flows)
    }

    fn of(&self, rank: usize, event: u64) -> &[u64] {
        self.0.get(&(rank, event)).map_or(&[], Vec::as_slice)
    }
}

/// Returns the flow of an event: from its collective to it, and from it to its requests.
pub(super) fn of_event(rank: usize, event: u64) -> u64 {
    flow(&[rank as u64, event])
}

/// The track of an event in its rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Calls,
    Collectives(u32),
    /// By communicator, channel, direction and rank.
    Proxy(u32, u16, bool, i32),
}

/// Draws the events of a rank.
pub(super) fn draw(
    canvas: &mut Canvas<'_>,
    parent: u64,
    timeline: &Timeline,
    rank: usize,
    flows: &Flows,
) -> io::Result<()> {
    let of_rank = &timeline.ranks[rank];
    let mut places: BTreeMap<Place, Vec<(u64, u64)>> = BTreeMap::new();
    for (id, event) in &of_rank.events {
        places.entry(place(of_rank, event)).or_default().push((event.begin, *id));
    }
    for (place, mut events) in places {
        events.sort_unstable();
        match place {
            Place::Calls => lines(canvas, parent, "calls and launches", of_rank, rank, &events, flows)?,
            Place::Collectives(communicator) => {
                let name = format!("{}: collectives", of_rank.communicator(communicator));
                lines(canvas, parent, &name, of_rank, rank, &events, flows)?;
            }
            Place::Proxy(communicator, channel, sends, peer) => {
                let way = if sends { "to" } else { "from" };
                let communicator = of_rank.communicator(communicator);
                let name = format!("{communicator}: channel {channel}, {way} {peer}");
                let group = canvas.track(parent, &name, Content::Group)?;
                let is_step = |(_, id): &(u64, u64)| of_rank.events[id].kind == Kind::ProxyStep;
                let (steps, operations): (Vec<_>, Vec<_>) = events.into_iter().partition(is_step);
                lines(canvas, group, "operations", of_rank, rank, &operations, flows)?;
                lines(canvas, group, "steps", of_rank, rank, &steps, flows)?;
            }
        }
    }
    Ok(())
}

/// Returns the track of an event; that of a step is its operation's.
fn place(rank: &Rank, event: &Event) -> Place {
    let operation = match event.kind {
        Kind::ProxyStep => rank.events.get(&event.parent).filter(|it| it.kind == Kind::ProxyOp),
        Kind::ProxyOp => Some(event),
        Kind::Coll | Kind::P2p => return Place::Collectives(event.number),
        _ => return Place::Calls,
    };
    match operation.map(|it| (it.number, it.facts)) {
        Some((communicator, Facts::Op(op))) => Place::Proxy(communicator, op.channel, op.sends, op.peer),
        Some((communicator, _)) => Place::Proxy(communicator, 0, false, -1),
        None => Place::Proxy(0, 0, false, -1),
    }
}

/// Draws events on the lines of one track.
fn lines(
    canvas: &mut Canvas<'_>,
    parent: u64,
    name: &str,
    of_rank: &Rank,
    rank: usize,
    events: &[(u64, u64)],
    flows: &Flows,
) -> io::Result<()> {
    let mut lines = canvas.lines(parent, name);
    for (_, id) in events {
        let event = &of_rank.events[id];
        let mut name = of_rank.event_name(event);
        let communicator = of_rank.communicator(event.number);
        let mut facts = facts(of_rank, event);
        if event.kind != Kind::ProxyStep {
            facts.push(("communicator", Value::Text(&communicator)));
        }
        if event.is_unfinished {
            let words = of_rank.without_end();
            name += &format!(" ({words})");
            facts.push((words, Value::Flag(true)));
        }
        let own = [of_event(rank, *id)];
        let flows = if event.kind == Kind::ProxyStep { &own } else { flows.of(rank, *id) };
        let (from, to) = (event.begin, event.until.max(event.begin));
        let slice = Slice { track: lines.line(canvas, from, to)?, from, to, name: &name, facts: &facts, flows };
        canvas.sink.begin(&slice)?;
        states(canvas, &slice, event)?;
        canvas.sink.end(&slice)?;
    }
    Ok(())
}

/// Draws the states of a proxy's event into its slice.
fn states(canvas: &mut Canvas<'_>, slice: &Slice<'_>, event: &Event) -> io::Result<()> {
    if event.kind != Kind::ProxyStep {
        return Ok(());
    }
    let ends = event.states.iter().skip(1).map(|(at, _)| *at).chain([slice.to]);
    for ((from, state), to) in event.states.iter().zip(ends) {
        let from = (*from).clamp(slice.from, slice.to);
        let to = to.clamp(from, slice.to);
        let number = Value::Number((*state).into());
        let facts = [("state", number)];
        canvas.slice(&Slice { from, to, name: state_name(*state), facts: &facts, flows: &[], ..*slice })?;
    }
    Ok(())
}

/// Returns the name of a step's state (`ncclProfilerEventState_t` of NCCL's profiler.h).
fn state_name(state: u16) -> &'static str {
    match state {
        8 => "waits for data from the GPU",
        9 => "waits until the message is sent",
        10 => "waits for the message",
        11 => "waits for the flush",
        12 => "waits for the GPU to take the data",
        20 => "waits for the network to take the message",
        _ => "another state",
    }
}

/// Returns the facts about an event.
fn facts<'a>(rank: &'a Rank, event: &Event) -> Vec<Fact<'a>> {
    match event.facts {
        Facts::Coll(it) => vec![
            ("collective", Value::Text(rank.name(it.function))),
            ("count", Value::Number(it.count)),
            ("datatype", Value::Text(rank.name(it.datatype))),
            ("algorithm", Value::Text(rank.name(it.algorithm))),
            ("protocol", Value::Text(rank.name(it.protocol))),
            ("sequence", Value::Number(it.sequence)),
        ],
        Facts::P2p(it) => vec![("count", Value::Number(it.count)), ("datatype", Value::Text(rank.name(it.datatype)))],
        Facts::Op(it) => vec![
            ("channel", Value::Number(it.channel.into())),
            ("steps", Value::Number(it.steps.into())),
            ("bytes of a step", Value::Number(it.chunk.into())),
        ],
        Facts::None if event.kind == Kind::ProxyStep && event.bytes > 0 => {
            vec![("step", Value::Number(event.number.into())), ("bytes", Value::Number(event.bytes))]
        }
        Facts::None if event.kind == Kind::ProxyStep => vec![("step", Value::Number(event.number.into()))],
        Facts::None => Vec::new(),
    }
}
