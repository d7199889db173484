//! The cells of the screen, row by row: a row on which nothing is written costs nothing.
//!
//! ratatui's own terminal compares and empties each cell of the screen for each frame, which is most of the cost of a
//! large one, and most of its rows are empty.

use ratatui::buffer::{Buffer, Cell};
use ratatui::layout::{Rect, Size};
use ratatui::style::Style;

/// The largest screen that is drawn, in cells; of a larger one, the rest stays empty. A terminal that claims more would
/// otherwise take all memory.
const MOST: Size = Size { width: 2000, height: 1000 };

/// The frame that is drawn, and the one before.
#[derive(Debug, Default)]
pub(super) struct Sheet {
    size: Size,
    rows: Vec<SheetRow>,
}

#[derive(Debug)]
struct SheetRow {
    now: Page,
    before: Page,
}

/// A row of a frame.
#[derive(Debug)]
struct Page {
    cells: Buffer,
    /// False if all cells are empty.
    is_written: bool,
}

impl Sheet {
    /// Returns an empty sheet for a screen of this size.
    pub(super) fn new(size: Size) -> Self {
        let row = |y| {
            let page = || Page {
                cells: Buffer::empty(Rect { x: 0, y, width: size.width.min(MOST.width), height: 1 }),
                is_written: false,
            };
            SheetRow { now: page(), before: page() }
        };
        Self { size, rows: (0..size.height.min(MOST.height)).map(row).collect() }
    }

    /// Returns the size of the screen that it was made for.
    pub(super) fn size(&self) -> Size {
        self.size
    }

    /// Returns the part of the screen that is drawn.
    pub(super) fn area(&self) -> Rect {
        Rect { x: 0, y: 0, width: self.size.width.min(MOST.width), height: self.rows.len() as u16 }
    }

    /// Returns the cells of a row from this column on, to write on them; none outside the screen.
    pub(super) fn cells(&mut self, x: u16, y: u16) -> &mut [Cell] {
        let Some(SheetRow { now, .. }) = self.rows.get_mut(usize::from(y)) else { return &mut [] };
        now.is_written = true;
        now.cells.content.get_mut(x.into()..).unwrap_or_default()
    }

    /// Writes a text whose signs may take two columns. Returns the column behind it.
    pub(super) fn text(&mut self, x: u16, y: u16, width: u16, text: &str, style: Style) -> u16 {
        let Some(SheetRow { now, .. }) = self.rows.get_mut(usize::from(y)) else { return x };
        now.is_written = true;
        now.cells.set_stringn(x, y, text, width.into(), style).0
    }

    /// Changes the style of a part of a row.
    pub(super) fn style(&mut self, x: u16, y: u16, width: u16, style: Style) {
        for cell in self.cells(x, y).iter_mut().take(width.into()) {
            cell.set_style(style);
        }
    }

    /// Returns the cells that differ from those of the frame before, and their columns and rows.
    pub(super) fn changes(&self) -> impl Iterator<Item = (u16, u16, &Cell)> {
        let rows = self.rows.iter().filter(|row| row.now.is_written || row.before.is_written);
        rows.flat_map(|row| row.before.cells.diff_iter(&row.now.cells))
    }

    /// Begins the next frame, which is empty.
    pub(super) fn turn(&mut self) {
        for SheetRow { now, before } in &mut self.rows {
            std::mem::swap(now, before);
            if now.is_written {
                now.cells.reset();
                now.is_written = false;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::backend::{Backend, CrosstermBackend};
    use ratatui::style::Color;

    const SIZE: Size = Size { width: 9, height: 3 };

    fn changed(sheet: &Sheet) -> Vec<(u16, u16, &str)> {
        sheet.changes().map(|(x, y, cell)| (x, y, cell.symbol())).collect()
    }

    /// Shows the changes on a terminal.
    fn show(sheet: &Sheet, terminal: &mut vt100::Parser) {
        let mut bytes = Vec::new();
        CrosstermBackend::new(&mut bytes).draw(sheet.changes()).unwrap();
        terminal.process(&bytes);
    }

    #[test]
    fn cells_that_are_as_before_are_no_changes() {
        let mut sheet = Sheet::new(SIZE);
        sheet.text(1, 1, 8, "ab", Style::new());
        assert_eq!(changed(&sheet), [(1, 1, "a"), (2, 1, "b")]);
        sheet.turn();
        sheet.text(1, 1, 8, "ac", Style::new());
        assert_eq!(changed(&sheet), [(2, 1, "c")]);
        sheet.turn();
        sheet.text(1, 1, 8, "ac", Style::new().fg(Color::Blue));
        assert_eq!(changed(&sheet), [(1, 1, "a"), (2, 1, "c")], "a colour is a change");
        sheet.turn();
        assert_eq!(changed(&sheet), [(1, 1, " "), (2, 1, " ")], "what was there is gone");
        sheet.turn();
        assert_eq!(changed(&sheet), []);
        assert!(sheet.rows.iter().all(|row| !row.now.is_written && !row.before.is_written), "they cost nothing");
        sheet.text(1, 1, 8, "ab", Style::new());
        assert_eq!(changed(&sheet), [(1, 1, "a"), (2, 1, "b")], "nothing of two frames ago is left");
    }

    #[test]
    fn frames_of_wide_signs_leave_nothing_of_the_frames_before() {
        let mut random = 1_u64;
        let mut next = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        let mut sheet = Sheet::new(SIZE);
        let new = || vt100::Parser::new(SIZE.height, SIZE.width, 0);
        let mut terminal = new();
        for _ in 0..2_000 {
            let mut alone = Sheet::new(SIZE);
            for _ in 0..next(4) {
                let (x, y, width) = (next(9) as u16, next(3) as u16, next(9) as u16);
                let text: String = (0..next(6)).map(|_| ['a', 'b', '▁', '数', ' '][next(5) as usize]).collect();
                let ends = [&mut sheet, &mut alone].map(|sheet| sheet.text(x, y, width, &text, Style::new()));
                assert!(ends[0] == ends[1] && ends[0] <= SIZE.width);
            }
            show(&sheet, &mut terminal);
            sheet.turn();
            let mut expected = new();
            show(&alone, &mut expected);
            let seen = |terminal: &vt100::Parser| {
                let rows = terminal.screen().rows(0, SIZE.width);
                rows.map(|row| row.trim_end().to_owned()).collect::<Vec<_>>()
            };
            assert_eq!(seen(&terminal), seen(&expected));
        }
    }

    #[test]
    fn nothing_is_written_outside_the_screen() {
        let mut sheet = Sheet::new(Size { width: u16::MAX, height: u16::MAX });
        assert_eq!((sheet.size().width, sheet.area().as_size()), (u16::MAX, MOST));
        assert!(sheet.cells(0, MOST.height).is_empty());
        assert_eq!(sheet.text(0, MOST.height, 2, "ab", Style::new()), 0);
        assert_eq!(sheet.text(MOST.width, 0, 2, "ab", Style::new()), MOST.width);
        sheet.style(MOST.width, 0, 2, Style::new().fg(Color::Blue));
        sheet.style(MOST.width - 1, 0, 2, Style::new().fg(Color::Blue));
        assert_eq!(changed(&sheet), [(MOST.width - 1, 0, " ")]);
    }
}
