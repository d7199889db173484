//! A job of tests, from look to look, and the screens on which it is drawn.

use crate::commands::top::board::{Board, Found};
use crate::commands::top::hands::{AllStanding, Drained, Standing};
use crate::commands::top::keys::{Effect, press};
use crate::commands::top::screen::draw;
use crate::commands::top::sheet::Sheet;
use crate::commands::top::style::Look;
use crate::host::{ByRail, Counts, Noted, RailId, Rates, Source, jobs};
use railweave_telemetry::{
    Connection, ConnectionState, Device, Direction, Event, EventKind, Latencies, Policy, Port, Presence, Process, Rail,
    RailState, Snapshot, State,
};
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::layout::Size;
use std::collections::BTreeMap;
use std::path::Path;
use termina::event::KeyCode;

const SECOND: u64 = 1_000_000_000;

/// A job whose processes go on from look to look.
pub(super) struct Story {
    pub(super) board: Board,
    pub(super) now_ns: u64,
    pub(super) processes: Vec<Member>,
    /// The terminals on which it was drawn so far, by their sizes, each with its sheet.
    screens: BTreeMap<(u16, u16), (Sheet, TestBackend)>,
}

pub(super) struct Member {
    pub(super) file: String,
    pub(super) state: State,
    pub(super) presence: Presence,
    before: Option<Counts>,
    written_ns: u64,
    fresh: BTreeMap<RailId, Latencies>,
}

/// Returns a process with connections to each of these peers, half of them in each direction, over eth0 and eth1.
pub(super) fn member(job: &str, rank: u32, peers: &[&str], connections: u32) -> Member {
    let connection = |number: u32| Connection {
        number,
        direction: if number.is_multiple_of(2) { Direction::Send } else { Direction::Receive },
        state: ConnectionState::Open,
        policy: Policy::Adaptive,
        device: Some(0),
        peer_rank: Some(8 + number % 2),
        since_ns: SECOND,
        messages: (number % 2 == 1).then_some(1200),
        waited_for_cts: 3,
        peer_host: peers[(number / connections) as usize].into(),
        ..Connection::default()
    };
    let rail = |index: u32| {
        let number = (index % 2) as u8;
        Rail {
            connection: index / 2,
            number,
            state: RailState::Up,
            policy: Policy::Adaptive,
            since_ns: SECOND,
            speed_mbps: Some(100_000),
            share: Some(if number == 0 { 49_152 } else { 16_384 }),
            in_flight: Some(1 << 20),
            port: Some(number.into()),
            local: format!("10.0.{number}.7"),
            remote: format!("10.0.{number}.8"),
            ..Rail::default()
        }
    };
    let port = |name: &str| Port { name: name.into(), fabric: "tcp".into() };
    let all = connections * peers.len() as u32;
    let process = Process {
        pid: 4000 + rank,
        host: "node7".into(),
        rank: Some(rank),
        job: job.into(),
        job_variable: "SLURM_JOB_ID".into(),
        ..Process::default()
    };
    let state = State {
        process,
        devices: vec![Device { name: "eth0+eth1".into(), ..Device::default() }],
        connections: (0..all).map(connection).collect(),
        rails: (0..2 * all).map(rail).collect(),
        ports: vec![port("eth0"), port("eth1")],
    };
    let file = format!("/run/{job}-{rank}");
    Member { file, state, presence: Presence::Running, before: None, written_ns: 0, fresh: BTreeMap::new() }
}

impl Story {
    pub(super) fn new(processes: Vec<Member>) -> Self {
        let mut story =
            Self { board: Board::new("node7".into()), now_ns: 60 * SECOND, processes, screens: BTreeMap::new() };
        story.stand("no agent", &[], &[]);
        story.look([0; 2], Vec::new());
        story
    }

    pub(super) fn stand(&mut self, who: &str, drained: &[(&str, &str)], rules: &[(&str, &str)]) {
        let rules = rules.iter().map(|(matchers, actions)| ((*matchers).to_owned(), (*actions).to_owned()));
        let ordered = ["operator".to_owned()];
        let drained = drained.iter().map(|(port, phase)| Drained::new(port, (*phase).to_owned(), &ordered, false));
        let standing = Standing { who: who.into(), drained: drained.collect(), rules: rules.collect() };
        self.board.take_answers(Vec::new(), AllStanding::from([("/run".into(), Ok(standing))]));
    }

    /// Looks half a second later: each rail of the two numbers has carried these bytes in its direction.
    pub(super) fn look(&mut self, bytes: [u64; 2], noted: Vec<Noted>) {
        self.now_ns += SECOND / 2;
        for member in &mut self.processes {
            let snapshot =
                Snapshot { state: member.state.clone(), written_ns: member.written_ns, ..Snapshot::default() };
            member.before = Some(Counts::of(&snapshot)).filter(|_| member.written_ns > 0);
            member.written_ns = self.now_ns;
            for rail in &mut member.state.rails {
                let more = bytes[usize::from(rail.number)];
                let counter =
                    if rail.connection.is_multiple_of(2) { &mut rail.bytes_sent } else { &mut rail.bytes_received };
                *counter += more;
                let mut fresh = Latencies::default();
                fresh.0[if rail.number == 0 { 5 } else { 8 }] = u32::from(more > 0);
                member.fresh.insert((rail.connection, rail.number), fresh);
            }
        }
        let found = self.found(noted);
        self.board.take(found);
    }

    pub(super) fn found(&self, noted: Vec<Noted>) -> Found {
        let fresh: Vec<ByRail<_>> =
            self.processes.iter().map(|member| member.fresh.clone().into_iter().collect()).collect();
        let sources = self.processes.iter().zip(&fresh).map(|(member, fresh)| Source {
            user: 1000,
            run_dir: Path::new("/run"),
            file: &member.file,
            state: &member.state,
            presence: member.presence,
            written_s_ago: 0.0,
            rates: Rates::new(member.before.as_ref(), member.written_ns, self.now_ns),
            fresh: Some(fresh),
        });
        let jobs = jobs(&sources.collect::<Vec<_>>());
        let run_dirs = vec!["/dev/shm/railweave-1000".into()];
        Found { jobs, noted, troubles: Vec::new(), run_dirs, now_ns: self.now_ns }
    }

    pub(super) fn looks(&mut self, count: usize, bytes: [u64; 2]) {
        (0..count).for_each(|_| self.look(bytes, Vec::new()));
    }

    /// Changes the rails of a number.
    pub(super) fn set(&mut self, number: u8, state: RailState) {
        for rail in self.processes.iter_mut().flat_map(|member| &mut member.state.rails) {
            if rail.number == number {
                (rail.state, rail.since_ns) = (state, self.now_ns);
            }
        }
    }

    pub(super) fn noted(&self, kind: EventKind, text: &str) -> Noted {
        let event = Event { time_ns: self.now_ns, kind, connection: Some(0), text: text.into(), ..Event::default() };
        Noted { process: "rank 0".into(), job: "4711".into(), file: "/run/4711-0".into(), event }
    }

    pub(super) fn press(&mut self, code: KeyCode) -> Effect {
        press(&mut self.board, code.into())
    }

    pub(super) fn type_in(&mut self, text: &str) -> Effect {
        text.chars().map(|letter| self.press(KeyCode::Char(letter))).last().unwrap_or(Effect::None)
    }

    pub(super) fn drawn(&mut self, width: u16, height: u16, look: Look) -> Buffer {
        let size = Size { width, height };
        let new = || (Sheet::new(size), TestBackend::new(width, height));
        let draw_on = |(sheet, terminal): &mut (Sheet, TestBackend)| {
            draw(sheet, &self.board, look);
            sheet.show(terminal).unwrap();
            terminal.buffer().clone()
        };
        let drawn = draw_on(&mut new());
        // The changes since the last frame make the same of it.
        assert_eq!(draw_on(self.screens.entry((width, height)).or_insert_with(new)), drawn);
        drawn
    }

    pub(super) fn text(&mut self, width: u16, height: u16, look: Look) -> String {
        let buffer = self.drawn(width, height, look);
        let mut text = String::new();
        for y in 0..height {
            let line: String = (0..width).map(|x| buffer[(x, y)].symbol()).collect();
            text += line.trim_end();
            text.push('\n');
        }
        text
    }

    /// Compares the screen with its picture.
    pub(super) fn is_drawn(&mut self, name: &str, width: u16, height: u16, look: Look) {
        let text = self.text(width, height, look);
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("src/commands/top/screens/{name}.txt"));
        if std::env::var_os("RAILWEAVE_DRAW_SCREENS").is_some() {
            std::fs::write(path, &text).unwrap();
            return;
        }
        let picture = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(text == picture, "{name} has changed; it is now:\n{text}\nand was:\n{picture}");
    }
}
