//! Stories of the board, with pictures of the screen in `screens/`.
//!
//! `RAILWEAVE_DRAW_SCREENS=1` draws the pictures again: look at each before it is committed.

mod story;

use self::story::{Story, member};
use super::board::Found;
use super::hands::{Action, AllStanding, Answer, Drained, Order, Standing};
use super::keys::{Effect, HELP, paste, press};
use super::plain::Lines;
use super::rows::Sort;
use super::style::{Colours, Look};
use railweave_telemetry::{ConnectionState, EventKind, Port, Presence, RailState};
use ratatui::buffer::Buffer;
use ratatui::style::Color;
use termina::event::{KeyCode, KeyEvent, KeyEventKind, Modifiers};

const LOOK: Look = Look { colours: Colours::Many, is_ascii: false };

fn order(action: Action) -> Effect {
    Effect::Order(Order { run_dir: "/run".into(), action })
}

/// Two jobs of two processes each, with 200 connections in all.
fn busy() -> Story {
    let peers = ["node8", "node9"];
    Story::new(vec![
        member("4711", 0, &peers, 25),
        member("4711", 1, &peers, 25),
        member("4712", 2, &peers, 25),
        member("4712", 3, &peers, 25),
    ])
}

#[test]
fn a_healthy_job_is_seen_at_every_size() {
    let mut story = busy();
    story.looks(30, [3_000_000, 1_000_000]);
    story.is_drawn("healthy_80x24", 80, 24, LOOK);
    story.press(KeyCode::Down);
    story.press(KeyCode::Down);
    story.is_drawn("healthy_200x50", 200, 50, LOOK);
    story.press(KeyCode::Up);
    story.is_drawn("peer_120x30", 120, 30, LOOK);
    story.press(KeyCode::Home);
    story.is_drawn("job_60x16", 60, 16, LOOK);
    for (width, height) in [(0, 0), (1, 1), (20, 50), (30, 8), (31, 9), (300, 7), (500, 200)] {
        story.text(width, height, LOOK);
    }
    assert!(story.text(29, 8, LOOK).starts_with("too small; try 30 x 8"));
}

#[test]
fn one_connection_has_room_for_its_events() {
    let mut story = Story::new(vec![member("", 0, &["node8"], 1)]);
    story.looks(4, [3_000_000, 1_000_000]);
    let opened = story.noted(EventKind::OPENED, "to node8: 10.0.0.7 - 10.0.0.8, 10.0.1.7 - 10.0.1.8");
    story.look([3_000_000, 1_000_000], vec![opened]);
    story.is_drawn("one_connection_80x24", 80, 24, LOOK);
}

#[test]
fn a_rail_that_goes_down_and_comes_back_is_told() {
    let mut story = Story::new(vec![member("4711", 0, &["node8"], 8)]);
    story.looks(16, [3_000_000, 3_000_000]);
    story.set(1, RailState::Down);
    let down = story.noted(EventKind::RAIL_DOWN, "rail 1 (10.0.1.7 - 10.0.1.8) to node8 failed: the link is down");
    story.look([4_000_000, 0], vec![down]);
    story.looks(8, [4_000_000, 0]);
    story.press(KeyCode::End);
    story.is_drawn("rail_down_80x24", 80, 24, LOOK);
    story.set(1, RailState::Up);
    let up = story.noted(EventKind::RAIL_UP, "rail 1 (10.0.1.7 - 10.0.1.8) to node8 carries messages again");
    story.look([3_000_000, 3_000_000], vec![up]);
    story.looks(8, [3_000_000, 3_000_000]);
    story.is_drawn("rail_back_80x24", 80, 24, LOOK);
}

#[test]
fn a_port_is_drained_and_given_back_by_one_key() {
    let mut story = Story::new(vec![member("4711", 0, &["node8"], 8)]);
    story.looks(8, [3_000_000, 1_000_000]);
    assert_eq!(story.press(KeyCode::Char('d')), Effect::None, "no rail is selected");
    assert!(story.text(80, 24, LOOK).contains("drain: no rail is selected"));
    story.press(KeyCode::End);
    assert_eq!(story.press(KeyCode::Char('d')), order(Action::Drain("eth1".into())));
    story.stand("agent 0.1.0", &[("eth1", "emptying")], &[]);
    story.look([3_000_000, 1_000_000], Vec::new());
    assert!(story.text(80, 24, LOOK).contains("1 eth1             emptying  "));
    story.set(1, RailState::Drained);
    story.stand("agent 0.1.0", &[("eth1", "empty")], &[]);
    let answer = Answer { text: "port eth1 is to be empty".into(), is_done: true };
    let standing = story.board.standing.clone();
    story.board.take_answers(vec![answer], standing);
    story.looks(8, [4_000_000, 0]);
    story.is_drawn("drained_80x24", 80, 24, LOOK);
    assert_eq!(story.press(KeyCode::Char('d')), order(Action::GiveBack("eth1".into())));
    story.stand("agent 0.1.0", &[("eth", "empty")], &[]);
    assert_eq!(story.press(KeyCode::Char('d')), order(Action::Drain("eth1".into())), "another port's name");
    for process in &mut story.processes {
        process.state.ports = vec![Port { name: "eth1@10.0.1.7".into(), ..Port::default() }; 2];
    }
    story.look([0; 2], Vec::new());
    story.stand("agent 0.1.0", &[("eth1", "empty")], &[]);
    story.press(KeyCode::End);
    assert_eq!(story.press(KeyCode::Char('d')), order(Action::GiveBack("eth1".into())), "the interface's name");
}

#[test]
fn a_port_that_nobody_ordered_empty_is_not_given_back() {
    let mut story = Story::new(vec![member("4711", 0, &["node8"], 8)]);
    story.looks(2, [3_000_000, 1_000_000]);
    story.press(KeyCode::End);
    let mut stand = |is_file| {
        let drained = Drained::new("eth1", "empty".into(), &["sick".into()], is_file);
        let standing = Standing { who: "agent".into(), drained: vec![drained], rules: Vec::new() };
        story.board.take_answers(Vec::new(), AllStanding::from([("/run".into(), Ok(standing))]));
        (story.press(KeyCode::Char('d')), story.text(120, 24, LOOK))
    };
    let (effect, text) = stand(false);
    assert_eq!(effect, Effect::None);
    assert!(text.contains("eth1 is drained by no order of an operator (sick)"));
    assert_eq!(stand(true).0, order(Action::GiveBack("eth1".into())), "a file without an agent");
}

#[test]
fn neither_escape_sequences_nor_pasted_texts_are_orders() {
    let mut story = Story::new(vec![member("4711", 0, &["node8"], 8)]);
    story.looks(2, [3_000_000, 1_000_000]);
    story.press(KeyCode::End);
    let alt = KeyEvent::new(KeyCode::Char('d'), Modifiers::ALT);
    assert_eq!(press(&mut story.board, alt), Effect::None);
    paste(&mut story.board, "d");
    assert!(story.board.answer.is_none());
    story.press(KeyCode::Char('w'));
    paste(&mut story.board, "7,\n3");
    assert!(story.text(120, 24, LOOK).contains("device=eth0+eth1: 7,3_"));
}

#[test]
fn keys_do_what_the_help_says_and_nothing_else() {
    let mut story = busy();
    story.looks(2, [3_000_000, 1_000_000]);
    let control = |letter| KeyEvent::new(KeyCode::Char(letter), Modifiers::CONTROL);
    for (letter, effect) in [('c', Effect::Quit), ('d', Effect::Quit), ('z', Effect::Suspend), ('l', Effect::Redraw)] {
        assert_eq!(press(&mut story.board, control(letter)), effect);
    }
    let release = KeyEvent { kind: KeyEventKind::Release, ..KeyEvent::new(KeyCode::Char('q'), Modifiers::NONE) };
    assert_eq!(press(&mut story.board, release), Effect::None);
    assert_eq!(story.press(KeyCode::Char('x')), Effect::None);
    assert!(story.board.answer.take().is_some_and(|answer| answer.text.contains("no key x")));
    story.press(KeyCode::Char('x'));
    story.press(KeyCode::Down);
    assert!(story.board.answer.is_none(), "the next key ends an answer");
    story.type_in("/4712");
    story.press(KeyCode::Enter);
    assert_eq!(story.board.rows().len(), 7, "all below a row that fits");
    story.press(KeyCode::End);
    story.press(KeyCode::Char('w'));
    story.press(KeyCode::Escape);
    assert_eq!((story.board.prompt.as_ref(), &*story.board.filter), (None, "4712"));
    assert_eq!([story.press(KeyCode::Char('+')), story.press(KeyCode::Char('-'))], [Effect::Faster, Effect::Slower]);
    // A name that would stand for others.
    story.press(KeyCode::Escape);
    story.processes = vec![member("4711", 0, &["node*"], 8)];
    story.look([0; 2], Vec::new());
    story.press(KeyCode::End);
    story.press(KeyCode::Char('w'));
    assert!(story.board.prompt.is_none());
}

#[test]
fn connections_that_failed_are_the_most_urgent() {
    let mut story = Story::new(vec![member("4711", 0, &["node8", "node9"], 4)]);
    story.set(0, RailState::Down);
    for rail in story.processes[0].state.rails.iter_mut().filter(|rail| rail.connection >= 4) {
        rail.state = RailState::Up;
    }
    story.processes[0].state.connections[5].state = ConnectionState::Failed;
    story.look([0; 2], Vec::new());
    while story.board.sort != Sort::State {
        story.press(KeyCode::Char('s'));
    }
    let text = story.text(80, 24, LOOK);
    assert!(text.find("node9").unwrap() < text.find("node8").unwrap() && text.contains("1 failed"), "{text}");
}

#[test]
fn weights_are_written_for_the_selected_peer() {
    let mut story = Story::new(vec![member("4711", 0, &["node8"], 8)]);
    story.looks(8, [3_000_000, 1_000_000]);
    story.press(KeyCode::Char('w'));
    assert!(story.text(80, 24, LOOK).contains("weights: no peer is selected"));
    story.press(KeyCode::End);
    story.type_in("w80, 20");
    story.is_drawn("weights_80x24", 80, 24, LOOK);
    let narrow = story.text(30, 8, LOOK);
    assert_eq!(narrow.lines().last().unwrap(), "…de8 device=eth0+eth1: 80, 20_", "{narrow}");
    let matchers = "job=4711 peer=node8 device=eth0+eth1";
    assert_eq!(story.press(KeyCode::Enter), order(Action::Set(matchers.into(), "weights 80,20".into())));
    story.stand("agent 0.1.0", &[], &[(matchers, "weights 80,20")]);
    story.type_in("w");
    assert!(story.text(120, 24, LOOK).contains(&format!("weights for {matchers}: 80,20_")));
    (0..9).for_each(|_| assert_eq!(story.press(KeyCode::Backspace), Effect::None));
    assert_eq!(story.press(KeyCode::Enter), order(Action::Clear(matchers.into())));
    // The same matchers in another order, and a rule that the line cannot show.
    story.stand("agent 0.1.0", &[], &[("peer=node8 device=eth0+eth1 job=4711", "weights 7")]);
    story.type_in("w");
    assert!(story.text(120, 24, LOOK).contains(&format!("weights for {matchers}: 7_")));
    story.press(KeyCode::Escape);
    story.stand("agent 0.1.0", &[], &[(matchers, "policy speed")]);
    story.press(KeyCode::Char('w'));
    assert!(story.board.prompt.is_none() && story.text(120, 24, LOOK).contains("-> policy speed stands"));
    // Nothing is known to stand, so nothing is ended.
    story.board.take_answers(Vec::new(), AllStanding::new());
    story.press(KeyCode::Char('w'));
    assert_eq!(story.press(KeyCode::Enter), Effect::None);
    assert!(story.text(120, 24, LOOK).contains("none are given and none are known to stand"));
    story.type_in("w1");
    assert_eq!((story.press(KeyCode::Escape), &story.board.prompt), (Effect::None, &None));
    story.processes[0].state.devices[0].name = "a device".into();
    story.look([0; 2], Vec::new());
    story.press(KeyCode::End);
    story.press(KeyCode::Char('w'));
    assert!(story.board.prompt.is_none() && story.text(120, 24, LOOK).contains("no rule can name this peer"));
}

#[test]
fn rows_are_sorted_filtered_and_folded() {
    let mut story = busy();
    for rail in &mut story.processes[2].state.rails {
        rail.state = if rail.number == 1 && rail.connection == 3 { RailState::Down } else { rail.state };
    }
    story.looks(8, [3_000_000, 1_000_000]);
    let lines = |story: &mut Story| -> Vec<String> {
        let text = story.text(120, 40, LOOK);
        let body = text.lines().skip(3).take_while(|line| !line.contains("── events") && !line.is_empty());
        body.map(|line| line.trim().split("  ").next().unwrap_or_default().to_owned()).collect()
    };
    let all = lines(&mut story);
    assert_eq!((all.len(), &*all[0], &*all[7]), (14, "▾ job 4711", "▾ job 4712"));
    (0..5).for_each(|_| assert_eq!(story.press(KeyCode::Char('s')), Effect::None));
    assert_eq!(story.board.sort.word(), "state");
    let sorted = lines(&mut story);
    assert_eq!((&*sorted[0], &*sorted[2]), ("▾ job 4712", "1 eth1"), "the rail that is down comes first");
    story.press(KeyCode::Char('r'));
    assert_eq!(lines(&mut story)[0], "▾ job 4711");
    story.type_in("/DOWN");
    assert_eq!(lines(&mut story), ["▾ job 4712", "▾ node8 by eth0+eth1", "1 eth1"]);
    story.press(KeyCode::Enter);
    assert!(story.text(120, 40, LOOK).contains("/ filter: DOWN"));
    story.press(KeyCode::Escape);
    assert_eq!(lines(&mut story).len(), 14);
    story.type_in("/nothing has this");
    story.press(KeyCode::Enter);
    assert!(story.text(120, 40, LOOK).contains("nothing here has \"nothing has this\"; Esc shows everything"));
    story.press(KeyCode::Escape);
    story.press(KeyCode::Char('f'));
    assert_eq!(lines(&mut story).len(), 6);
    story.type_in("/down");
    assert_eq!(lines(&mut story), ["▾ job 4712", "▾ node8 by eth0+eth1", "1 eth1"], "a filter looks below folded rows");
    story.press(KeyCode::Enter);
    story.press(KeyCode::Left);
    assert!(story.text(120, 40, LOOK).contains("fold: a filter shows everything below; Esc ends it"));
    story.press(KeyCode::Escape);
    story.press(KeyCode::Char('f'));
    story.press(KeyCode::End);
    story.press(KeyCode::Left);
    story.press(KeyCode::Left);
    assert_eq!(lines(&mut story).len(), 12, "of a rail, the peer is folded");
    story.press(KeyCode::Right);
    story.press(KeyCode::Home);
    story.press(KeyCode::Enter);
    assert_eq!(lines(&mut story).len(), 8);
}

#[test]
fn a_long_list_follows_the_selection() {
    let names: Vec<String> = (0..60).map(|number| format!("node{number:02}")).collect();
    let peers: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut story = Story::new(vec![member("4711", 0, &peers, 2)]);
    story.looks(3, [3_000_000, 1_000_000]);
    (0..100).for_each(|_| assert_eq!(story.press(KeyCode::Down), Effect::None));
    let text = story.text(80, 24, LOOK);
    assert!(text.contains("node32 by") && !text.contains("job 4711"), "{text}");
    story.press(KeyCode::End);
    assert!(story.text(80, 24, LOOK).contains("node59"));
    story.press(KeyCode::Home);
    assert!(story.text(80, 24, LOOK).contains("job 4711"));
    story.press(KeyCode::PageDown);
    // Most of it ends, and the selection with it.
    story.processes = vec![member("4711", 0, &["node00"], 2)];
    story.look([0; 2], Vec::new());
    assert!(story.text(80, 24, LOOK).contains("job 4711"));
}

#[test]
fn an_empty_table_says_why() {
    let mut story = Story::new(Vec::new());
    assert!(story.text(200, 24, LOOK).contains("no process of Railweave has a file in"));
    let troubles = ["\"/run\" is too open; allowed: 0700; try chmod".to_owned(), "\"/other\" is gone".to_owned()];
    story.board.take(Found { troubles: troubles.into(), now_ns: story.now_ns, ..Found::default() });
    let text = story.text(200, 24, LOOK);
    assert!(text.contains("\"/run\" is too open; allowed: 0700; try chmod (and 1 more)"), "{text}");
    assert!(!text.contains("no process of Railweave"), "{text}");
}

#[test]
fn nothing_is_said_by_colour_alone_and_without_colours_there_are_none() {
    let mut story = Story::new(vec![member("4711", 0, &["node8"], 8)]);
    story.looks(8, [3_000_000, 1_000_000]);
    story.set(0, RailState::Drained);
    story.set(1, RailState::Down);
    let failed = story.noted(EventKind::FAILED, "it failed");
    story.look([1; 2], vec![failed]);
    let none = Look { colours: Colours::None, is_ascii: false };
    let coloured =
        |buffer: &Buffer| buffer.content.iter().any(|cell| (cell.fg, cell.bg) != (Color::Reset, Color::Reset));
    assert!(coloured(&story.drawn(80, 24, LOOK)));
    assert!(!coloured(&story.drawn(80, 24, none)));
    assert_eq!(story.text(80, 24, LOOK), story.text(80, 24, none));
    let ascii = Look { colours: Colours::None, is_ascii: true };
    story.is_drawn("ascii_80x24", 80, 24, ascii);
    assert!(story.text(200, 50, ascii).is_ascii());
    story.press(KeyCode::Char('?'));
    assert!(story.text(80, 24, ascii).is_ascii());
}

#[test]
fn the_help_fits_a_small_terminal() {
    let mut story = busy();
    story.press(KeyCode::Char('?'));
    story.is_drawn("help_80x24", 80, 24, LOOK);
    assert!(
        HELP.len() + 4 <= 24
            && HELP.iter().all(|(keys, text)| keys.chars().count() <= 13 && text.chars().count() <= 65)
    );
    story.press(KeyCode::Char('x'));
    assert!(!story.board.shows_help);
}

#[test]
fn an_empty_run_dir_says_what_to_do() {
    let mut story = Story::new(Vec::new());
    story.is_drawn("empty_80x24", 80, 24, LOOK);
}

#[test]
fn names_from_files_obey_no_terminal() {
    let hostile = "\u{1b}[31mred\u{202e}\nnode";
    let mut story = Story::new(vec![member(hostile, 0, &[hostile], 2)]);
    story.processes[0].state.ports = vec![Port { name: hostile.into(), fabric: "tcp".into() }; 2];
    let failed = story.noted(EventKind::FAILED, hostile);
    story.look([1; 2], vec![failed]);
    story.press(KeyCode::End);
    let text = story.text(120, 30, LOOK);
    assert!(text.contains('\u{fffd}') && !text.contains(['\u{1b}', '\u{202e}']), "{text}");
    let mut lines = Lines::default();
    let found = story.found(Vec::new());
    let lines = lines.look(&mut story.board, found);
    assert!(lines.iter().all(|line| line.lines().count() == 1 && !line.contains('\u{1b}')), "{lines:?}");
    // Signs of ASCII alone are as dangerous.
    for hostile in ["\u{1b}[31mred", "a\u{7f}b", "a\u{9}b"] {
        let mut story = Story::new(vec![member(hostile, 0, &[hostile], 2)]);
        let text = story.text(120, 30, LOOK);
        assert!(text.contains('\u{fffd}') && !text.contains(['\u{1b}', '\u{7f}', '\t']), "{hostile:?}: {text}");
    }
}

#[test]
fn names_that_are_too_long_end_in_a_sign_and_touch_no_other_column() {
    let of = |host: &str| {
        let mut story = Story::new(vec![member("4711", 0, &[host], 2)]);
        let text = story.text(80, 24, LOOK);
        text.lines().find(|line| line.contains("▾ n") || line.contains("▾ 数")).unwrap().to_owned()
    };
    let plain = of(&"n123456789".repeat(9));
    assert!(plain.starts_with("  ▾ n123456789n123456… 1→ 1←"), "{plain:?}");
    // Each takes two columns, and the picture has an empty sign for the second one.
    let wide = of(&"数".repeat(40));
    assert!(wide.matches('数').count() == 8 && wide.contains("数 …  1→ 1←"), "{wide:?}");
}

#[test]
fn the_folder_of_the_selected_row_comes_first() {
    let mut story = Story::new(vec![member("4711", 0, &["node8"], 2)]);
    story.board.run_dirs = ["/a", "/b", "/run", "/d"].map(Into::into).to_vec();
    let by_use = |story: &Story| story.board.run_dirs_by_use();
    assert_eq!(by_use(&story), story.board.run_dirs, "nothing is selected");
    story.press(KeyCode::End);
    assert_eq!(by_use(&story), ["/run", "/a", "/b", "/d"].map(std::path::PathBuf::from));
    story.board.run_dirs.remove(2);
    assert_eq!(by_use(&story), story.board.run_dirs, "it is not shown any more");
}

#[test]
fn processes_that_come_end_and_fall_silent_are_events() {
    let mut story = Story::new(vec![member("4711", 0, &["node8"], 2)]);
    story.look([1; 2], Vec::new());
    story.processes.push(member("4711", 1, &["node8"], 2));
    story.look([1; 2], Vec::new());
    story.processes[0].presence = Presence::Gone;
    story.look([1; 2], Vec::new());
    story.processes.remove(0);
    story.looks(4, [1; 2]);
    let texts: Vec<_> = story.board.events.newest().map(|event| (&*event.text, event.others)).collect();
    assert_eq!(
        texts,
        [
            ("rank 0 of job 4711 (pid 4000) has ended", 0),
            ("rank 0 of job 4711 (pid 4000) is gone, and has left its file", 0),
            ("rank 1 of job 4711 (pid 4001) has begun", 0),
        ]
    );
}

#[test]
fn lines_have_every_rail_and_each_event_once() {
    let mut story = Story::new(vec![member("4711", 0, &["node8"], 2)]);
    let mut lines = Lines::default();
    story.look([3_000_000, 1_000_000], Vec::new());
    let down = story.noted(EventKind::RAIL_DOWN, "rail 1 failed");
    let found = story.found(vec![down]);
    let first = lines.look(&mut story.board, found);
    assert_eq!(
        first,
        [
            "00:01:01Z event rail-down of rank 0 of job 4711: connection 0: rail 1 failed",
            "00:01:01Z job 4711 peer node8 device eth0+eth1 rail 0 port eth0: up, sent 48.0 Mbit/s, received 48.0 \
             Mbit/s, share 75 %, p50 48 µs, p99 64 µs",
            "00:01:01Z job 4711 peer node8 device eth0+eth1 rail 1 port eth1: up, sent 16.0 Mbit/s, received 16.0 \
             Mbit/s, share 25 %, p50 384 µs, p99 509 µs",
        ]
    );
    let found = story.found(Vec::new());
    assert_eq!(lines.look(&mut story.board, found).len(), 2);
    story.processes.clear();
    let said = [(); 2].map(|()| {
        let found = story.found(Vec::new());
        lines.look(&mut story.board, found)
    });
    assert_eq!(said[0].last().unwrap(), "00:01:01Z no connections in /dev/shm/railweave-1000");
    assert!(said[1].is_empty(), "it is said once");
}
