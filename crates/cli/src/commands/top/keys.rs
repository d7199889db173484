//! The keys.

use super::board::{Board, Prompt};
use super::hands::{Action, Answer, Order};
use super::key::Key;
use super::rows::About;
use termina::event::{KeyCode, KeyEvent, KeyEventKind, Modifiers};

/// The effect of a key outside the board.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    None,
    Quit,
    /// Give the terminal back until the user comes again.
    Suspend,
    /// Draw everything again.
    Redraw,
    Order(Order),
    /// Refresh more or less often.
    Faster,
    Slower,
}

/// The rows by which the pages of the table differ.
const PAGE: isize = 10;

/// The keys for people: those of the help.
pub(super) const HELP: [(&str, &str); 17] = [
    ("↑ ↓ or k j", "select a row; PgUp, PgDn, Home and End go further"),
    ("← → or h l", "fold or unfold a job or a peer; Enter does either"),
    ("f", "fold or unfold all peers"),
    ("d", "drain the selected rail's port, or give it back; jobs go on"),
    ("w", "weights for the selected peer, such as 80,20; none ends them"),
    ("s  r", "sort by the next column, from its other end"),
    ("/", "only rows with a text: names, addresses, states; Esc: all"),
    ("e", "hide or show the events"),
    ("p or Space", "pause; + and - look more or less often"),
    ("?  q", "this help; quit, as Ctrl-C; Ctrl-Z suspends, Ctrl-L redraws"),
    ("", ""),
    ("SENT, RECV", "bits per second, over 0.4 s or more; BAR is their sum"),
    ("SHARE", "the part of the peer's sent data that takes this rail"),
    ("P50, P99", "the latency of 50 and 99 % of the last 10 s' sampled writes"),
    ("PAST", "the rate in the last looks; all rails have one scale"),
    ("STATE", "1/4 down: one of four rails, each of another connection"),
    ("", "5→ 3←: 5 connections send, 3 receive"),
];

/// Takes in a key.
pub(super) fn press(board: &mut Board, key: KeyEvent) -> Effect {
    if key.kind == KeyEventKind::Release {
        return Effect::None;
    }
    if key.modifiers.contains(Modifiers::CONTROL) {
        return match key.code {
            KeyCode::Char('c' | 'd') => Effect::Quit,
            KeyCode::Char('z') => Effect::Suspend,
            KeyCode::Char('l') => Effect::Redraw,
            KeyCode::Char('u') => {
                board.erase_all();
                Effect::None
            }
            // Some terminals send it for Backspace.
            KeyCode::Char('h') => {
                board.erase();
                Effect::None
            }
            _ => Effect::None,
        };
    }
    // Escape and a letter may come as one key.
    if key.modifiers.intersects(Modifiers::ALT | Modifiers::META | Modifiers::SUPER) {
        return Effect::None;
    }
    board.answer = None;
    if board.prompt.is_some() {
        return write(board, key.code);
    }
    if board.shows_help {
        board.shows_help = false;
        return if key.code == KeyCode::Char('q') { Effect::Quit } else { Effect::None };
    }
    match key.code {
        KeyCode::Char('q') => return Effect::Quit,
        KeyCode::Char('+') => return Effect::Faster,
        KeyCode::Char('-') => return Effect::Slower,
        KeyCode::Char('d') => return drain(board).map_or(Effect::None, Effect::Order),
        KeyCode::Char('w') => ask_weights(board),
        KeyCode::Up | KeyCode::Char('k') => board.go(-1),
        KeyCode::Down | KeyCode::Char('j') => board.go(1),
        KeyCode::PageUp => board.go(-PAGE),
        KeyCode::PageDown => board.go(PAGE),
        KeyCode::Home | KeyCode::Char('g') => board.go(isize::MIN),
        KeyCode::End | KeyCode::Char('G') => board.go(isize::MAX),
        KeyCode::Left | KeyCode::Char('h') => board.fold(Some(true)),
        KeyCode::Right | KeyCode::Char('l') => board.fold(Some(false)),
        KeyCode::Enter => board.fold(None),
        KeyCode::Char('f') => board.fold_all(),
        KeyCode::Char('s') => board.sort = board.sort.next(),
        KeyCode::Char('r') => board.is_reversed = !board.is_reversed,
        KeyCode::Char('e') => board.hides_events = !board.hides_events,
        KeyCode::Char('p' | ' ') => board.is_paused = !board.is_paused,
        KeyCode::Char('?') | KeyCode::Function(1) => board.shows_help = true,
        KeyCode::Char('/') => board.prompt = Some(Prompt::Filter(board.filter.clone())),
        KeyCode::Escape => board.filter.clear(),
        KeyCode::Char(letter) => board.hint(format!("no key {letter}; ? shows all")),
        _ => {}
    }
    Effect::None
}

/// Takes in a text that was pasted: into a line that the user writes, and nowhere else.
pub(super) fn paste(board: &mut Board, text: &str) {
    if board.prompt.is_some() {
        text.chars().for_each(|letter| board.write(letter));
    }
}

/// Takes in a key of the line that the user writes.
fn write(board: &mut Board, code: KeyCode) -> Effect {
    match code {
        KeyCode::Char(letter) => board.write(letter),
        KeyCode::Backspace => board.erase(),
        KeyCode::Escape => {
            if let Some(Prompt::Filter(_)) = board.prompt.take() {
                board.filter.clear();
            }
        }
        KeyCode::Enter => return board.finish_prompt().map_or(Effect::None, Effect::Order),
        _ => {}
    }
    Effect::None
}

/// Returns the order about the selected rail's port.
fn drain(board: &mut Board) -> Option<Order> {
    let rows = board.rows();
    let row = board.place(&rows).and_then(|place| rows.get(place));
    let (run_dir, port) = match row.map(|row| (row.about, row.key.run_dir.clone())) {
        Some((About::Rail(rail), run_dir)) => (run_dir, rail.port.clone()),
        _ => {
            board.hint("drain: no rail is selected; select the rail whose port is to be empty");
            return None;
        }
    };
    let Some(port) = port else {
        board.hint(
            "drain: the job's file does not name this rail's port; try `railweave topo` for its name, and `railweave \
             policy drain PORT`",
        );
        return None;
    };
    let action = match board.drain_of(&run_dir, &port) {
        Some(drained) if drained.is_ordered => Action::GiveBack(drained.port.clone()),
        Some(drained) => {
            let (port, reasons) = (&drained.port, &drained.reasons);
            let text = format!("drain: {port} is drained by no order of an operator ({reasons}); see docs/agent.md");
            board.hint(text);
            return None;
        }
        None => Action::Drain(port),
    };
    board.answer = Some(Answer { text: "the order is given; its answer comes".to_owned(), is_done: true });
    Some(Order { run_dir, action })
}

/// Asks for the weights of the selected peer.
fn ask_weights(board: &mut Board) {
    let rows = board.rows();
    let key = board.place(&rows).and_then(|place| rows.get(place)).map(|row| row.key.clone());
    let Some(key) = key.filter(|key| key.peer.is_some()) else {
        return board.hint("weights: no peer is selected; select the peer, or a rail to it");
    };
    match matchers(&key) {
        Some(matchers) => {
            let run_dir = key.run_dir.clone();
            let (text, stands) = match board.actions_of(&run_dir, &matchers) {
                None => (String::new(), false),
                Some(actions) => match actions.strip_prefix("weights ") {
                    Some(weights) => (weights.to_owned(), true),
                    None => {
                        let text = format!("weights: {matchers} -> {actions} stands; try `railweave policy set`");
                        return board.hint(text);
                    }
                },
            };
            board.prompt = Some(Prompt::Weights { text, matchers, stands, run_dir });
        }
        None => board.hint(
            "weights: no rule can name this peer or its device, because the name is not known or has signs of the \
             rules' language; try `railweave policy set`",
        ),
    }
}

/// Returns the matchers of a peer; `None` if no rule can name it.
fn matchers(key: &Key) -> Option<String> {
    let (host, device) = key.peer.as_ref()?;
    let named = [("job", &key.job), ("peer", host), ("device", device)];
    let is_right = |(_, value): &(&str, &String)| value.is_empty() || railweave_agent::is_name(value);
    if host.is_empty() || !named.iter().all(is_right) {
        return None;
    }
    let matchers = named.iter().filter(|(_, value)| !value.is_empty()).map(|(name, value)| format!("{name}={value}"));
    Some(matchers.collect::<Vec<_>>().join(" "))
}
