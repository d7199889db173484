//! The cells of the screen, row by row: a row on which nothing is written costs nothing.
//!
//! ratatui's own terminal compares and empties each cell of the screen for each frame, which is most of the cost of a
//! large one, and most of its rows are empty.

use ratatui::backend::Backend;
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
    /// `None` until something is written on a row.
    rows: Vec<Option<SheetRow>>,
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
        Self { size, rows: (0..size.height.min(MOST.height)).map(|_| None).collect() }
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
        let row = self.row(y).map(|row| &mut row.content[..]).unwrap_or_default();
        row.get_mut(x.into()..).unwrap_or_default()
    }

    /// Writes a text whose signs may take two columns. Returns the column behind it.
    pub(super) fn text(&mut self, x: u16, y: u16, width: u16, text: &str, style: Style) -> u16 {
        self.row(y).map_or(x, |row| row.set_stringn(x, y, text, width.into(), style).0)
    }

    /// Changes the style of a part of a row.
    pub(super) fn style(&mut self, x: u16, y: u16, width: u16, style: Style) {
        for cell in self.cells(x, y).iter_mut().take(width.into()) {
            cell.set_style(style);
        }
    }

    /// Returns a row, to write on it.
    fn row(&mut self, y: u16) -> Option<&mut Buffer> {
        let area = Rect { y, height: 1, ..self.area() };
        let page = || Page { cells: Buffer::empty(area), is_written: false };
        let row = self.rows.get_mut(usize::from(y))?.get_or_insert_with(|| SheetRow { now: page(), before: page() });
        row.now.is_written = true;
        Some(&mut row.now.cells)
    }

    /// Shows the frame on a terminal that shows the one before, and begins the next one, which is empty.
    ///
    /// # Errors
    /// If the terminal fails.
    pub(super) fn show<T: Backend>(&mut self, terminal: &mut T) -> Result<(), T::Error> {
        if self.changes().next().is_some() {
            terminal.draw(self.changes())?;
        }
        for SheetRow { now, before } in self.rows.iter_mut().flatten() {
            std::mem::swap(now, before);
            if now.is_written {
                now.cells.reset();
                now.is_written = false;
            }
        }
        Ok(())
    }

    /// Returns the cells that differ from those of the frame before, and their columns and rows.
    fn changes(&self) -> impl Iterator<Item = (u16, u16, &Cell)> {
        let rows = self.rows.iter().flatten().filter(|row| row.now.is_written || row.before.is_written);
        rows.flat_map(|row| row.before.cells.diff_iter(&row.now.cells))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::backend::{CrosstermBackend, TestBackend};
    use ratatui::style::Color;

    const SIZE: Size = Size { width: 9, height: 3 };

    /// Shows the frame, and returns its changes.
    fn shown(sheet: &mut Sheet) -> Vec<(u16, u16, String)> {
        let changes = sheet.changes().map(|(x, y, cell)| (x, y, cell.symbol().to_owned())).collect();
        sheet.show(&mut TestBackend::new(SIZE.width, SIZE.height)).unwrap();
        changes
    }

    fn change(x: u16, y: u16, symbol: &str) -> (u16, u16, String) {
        (x, y, symbol.to_owned())
    }

    #[test]
    fn cells_that_are_as_before_are_no_changes() {
        let mut sheet = Sheet::new(SIZE);
        sheet.text(1, 1, 8, "ab", Style::new());
        assert_eq!(shown(&mut sheet), [change(1, 1, "a"), change(2, 1, "b")]);
        sheet.text(1, 1, 8, "ac", Style::new());
        assert_eq!(shown(&mut sheet), [change(2, 1, "c")]);
        sheet.text(1, 1, 8, "ac", Style::new().fg(Color::Blue));
        assert_eq!(shown(&mut sheet), [change(1, 1, "a"), change(2, 1, "c")], "a colour is a change");
        assert_eq!(shown(&mut sheet), [change(1, 1, " "), change(2, 1, " ")], "what was there is gone");
        assert_eq!(shown(&mut sheet), []);
        let is_idle = |row: &SheetRow| !row.now.is_written && !row.before.is_written;
        assert!(sheet.rows.iter().flatten().all(is_idle), "they cost nothing");
        assert!(sheet.rows[0].is_none() && sheet.rows[1].is_some());
        sheet.text(1, 1, 8, "ab", Style::new());
        assert_eq!(shown(&mut sheet), [change(1, 1, "a"), change(2, 1, "b")], "nothing of two frames ago is left");
    }

    #[test]
    fn a_frame_without_changes_is_no_text() {
        let mut sheet = Sheet::new(SIZE);
        for is_first in [true, false] {
            sheet.text(1, 1, 8, "ab", Style::new());
            let mut bytes = Vec::new();
            sheet.show(&mut CrosstermBackend::new(&mut bytes)).unwrap();
            assert_eq!(bytes.is_empty(), !is_first);
        }
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
            let mut expected = new();
            for (sheet, terminal) in [(&mut sheet, &mut terminal), (&mut alone, &mut expected)] {
                let mut bytes = Vec::new();
                sheet.show(&mut CrosstermBackend::new(&mut bytes)).unwrap();
                terminal.process(&bytes);
            }
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
        assert_eq!(sheet.changes().map(|(x, y, _)| (x, y)).collect::<Vec<_>>(), [(MOST.width - 1, 0)]);
        let rows = sheet.rows.iter().flatten().count();
        assert_eq!((sheet.rows.len(), rows), (1000, 1), "the others take no room");
    }

    #[test]
    fn a_style_is_that_of_its_cells_alone() {
        let mut sheet = Sheet::new(SIZE);
        sheet.style(1, 1, 2, Style::new().fg(Color::Blue));
        assert_eq!(sheet.changes().map(|(x, y, _)| (x, y)).collect::<Vec<_>>(), [(1, 1), (2, 1)]);
    }
}
