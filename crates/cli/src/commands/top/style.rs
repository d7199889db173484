//! Colours and signs.
//!
//! The colours are those of Okabe and Ito, which people tell apart whatever their sight, or where a terminal has few
//! colours, yellow, blue and magenta; and nothing is said by a colour alone.

use super::events::Weight;
use railweave_telemetry::RailState;
use ratatui::style::{Color, Modifier, Style};

/// The colours that the terminal has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Colours {
    /// None, as `NO_COLOR` asks for (no-color.org).
    None,
    /// The 8 of every terminal, and their bright ones.
    Few,
    /// The 256 of xterm.
    Many,
}

/// The look of everything.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    pub(super) colours: Colours,
    /// True if the terminal shows only ASCII.
    pub(super) is_ascii: bool,
}

impl Look {
    /// Returns the look for the terminal that these variables describe.
    pub(super) fn new(variable: impl Fn(&str) -> Option<String>, is_ascii: bool) -> Self {
        let set = |name| variable(name).filter(|value| !value.is_empty());
        let colours = if set("NO_COLOR").is_some() {
            Colours::None
        } else if set("COLORTERM").is_some() || set("TERM").is_some_and(|term| term.contains("256")) {
            Colours::Many
        } else {
            Colours::Few
        };
        // The first that is set counts (locale(7)).
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(set).unwrap_or_default();
        let locale = locale.to_ascii_uppercase();
        let has_unicode = locale.contains("UTF-8") || locale.contains("UTF8");
        Self { colours, is_ascii: is_ascii || !has_unicode }
    }

    fn pick(self, many: u8, few: Color, none: Modifier) -> Style {
        match self.colours {
            Colours::None => Style::new().add_modifier(none),
            Colours::Few => Style::new().fg(few),
            Colours::Many => Style::new().fg(Color::Indexed(many)),
        }
    }

    /// Something that is wrong: vermillion.
    pub(super) fn wrong(self) -> Style {
        self.pick(202, Color::LightYellow, Modifier::REVERSED).add_modifier(Modifier::BOLD)
    }

    /// Something to look at: orange.
    pub(super) fn warning(self) -> Style {
        self.pick(214, Color::Yellow, Modifier::BOLD)
    }

    /// Something that an operator has ordered: reddish purple.
    pub(super) fn ordered(self) -> Style {
        self.pick(176, Color::LightMagenta, Modifier::UNDERLINED)
    }

    /// Traffic: sky blue.
    pub(super) fn traffic(self) -> Style {
        self.pick(75, Color::LightCyan, Modifier::empty())
    }

    /// Something that goes well: bluish green.
    pub(super) fn well(self) -> Style {
        self.pick(36, Color::LightBlue, Modifier::empty())
    }

    /// Something that matters less.
    pub(super) fn faint(self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }

    pub(super) fn heading(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    pub(super) fn selected(self) -> Modifier {
        Modifier::REVERSED
    }

    pub(super) fn of_state(self, state: RailState) -> Style {
        match state {
            RailState::Up => self.well(),
            RailState::Down | RailState::NeverUp => self.wrong(),
            RailState::Suspected | RailState::Repairing => self.warning(),
            RailState::Drained => self.ordered(),
            RailState::Unknown => self.faint(),
        }
    }

    pub(super) fn of_weight(self, weight: Weight) -> Style {
        match weight {
            Weight::Usual => self.faint(),
            Weight::Change => Style::new(),
            Weight::Wrong => self.wrong(),
            Weight::Well => self.well(),
        }
    }

    /// Returns one of two texts: for a terminal with Unicode, or without.
    pub(super) fn either<T>(self, unicode: T, ascii: T) -> T {
        if self.is_ascii { ascii } else { unicode }
    }

    /// Returns a bar of this part of `width` cells; something is seen of every part above 0.
    pub(super) fn bar(self, part: f64, width: usize) -> String {
        const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
        let part = if part.is_finite() { part.clamp(0.0, 1.0) } else { 0.0 };
        if self.is_ascii {
            let cells = (part * width as f64).round() as usize;
            return "#".repeat(cells.max(usize::from(part > 0.0)));
        }
        let eighths = ((part * width as f64 * 8.0).round() as usize).max(usize::from(part > 0.0));
        "█".repeat(eighths / 8) + EIGHTHS[eighths % 8]
    }

    /// Returns a line of values from 0 to 1, at the right end of `width` cells.
    pub(super) fn sparkline(self, values: impl Iterator<Item = f64>, width: usize) -> String {
        const HEIGHTS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
        const ASCII: [char; 8] = ['_', '.', ',', '-', '=', '+', '*', '#'];
        let heights = if self.is_ascii { ASCII } else { HEIGHTS };
        let cell = |value: f64| {
            let value = if value.is_finite() { value.clamp(0.0, 1.0) } else { 0.0 };
            // The lowest is for nothing at all.
            let above = if value > 0.0 { ((value * 7.0).ceil() as usize).max(1) } else { 0 };
            heights[above]
        };
        let line: String = values.map(cell).collect();
        format!("{line:>width$}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(variables: &[(&str, &str)]) -> Look {
        let find =
            |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        Look::new(find, false)
    }

    #[test]
    fn the_terminal_says_what_it_can_show() {
        let full = look(&[("TERM", "xterm-256color"), ("LANG", "de_DE.UTF-8")]);
        assert_eq!((full.colours, full.is_ascii), (Colours::Many, false));
        let few = look(&[("TERM", "linux"), ("LC_ALL", "C"), ("LANG", "C.UTF-8")]);
        assert_eq!((few.colours, few.is_ascii), (Colours::Few, true));
        let none = look(&[("NO_COLOR", "1"), ("COLORTERM", "truecolor"), ("LC_CTYPE", "C.utf8")]);
        assert_eq!((none.colours, none.is_ascii), (Colours::None, false));
        assert_eq!(look(&[("NO_COLOR", ""), ("COLORTERM", "truecolor")]).colours, Colours::Many, "empty is not set");
    }

    #[test]
    fn without_colours_no_style_has_one() {
        let look = Look { colours: Colours::None, is_ascii: false };
        let states = RailState::ALL.iter().map(|state| look.of_state(*state));
        let weights = [Weight::Usual, Weight::Change, Weight::Wrong, Weight::Well].map(|weight| look.of_weight(weight));
        for style in states.chain(weights).chain([look.traffic(), look.warning(), look.ordered()]) {
            assert_eq!((style.fg, style.bg), (None, None));
        }
        assert_ne!(look.of_state(RailState::Down), look.of_state(RailState::Up));
    }

    #[test]
    fn bars_show_parts_and_something_of_every_part() {
        let look = Look { colours: Colours::None, is_ascii: false };
        let bars = [0.0, 0.001, 0.5, 0.99, 1.0, 7.0, f64::NAN].map(|part| look.bar(part, 4));
        assert_eq!(bars, ["", "▏", "██", "████", "████", "████", ""]);
        let look = Look { is_ascii: true, ..look };
        assert_eq!([0.0, 0.001, 0.5, 1.0].map(|part| look.bar(part, 4)), ["", "#", "##", "####"]);
    }

    #[test]
    fn sparklines_end_at_the_right() {
        let look = Look { colours: Colours::None, is_ascii: false };
        assert_eq!(look.sparkline([0.0, 0.01, 0.5, 1.0, f64::INFINITY].into_iter(), 7), "  ▁▂▅█▁");
    }
}
