//! The columns of the table, as many as the width has room for.

use super::rows::Sort;

/// A column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Column {
    Name,
    State,
    Bar,
    Sent,
    Received,
    Share,
    P50,
    P99,
    InFlight,
    Again,
    Past,
}

/// A column with its place and its width in cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Placed {
    pub(super) column: Column,
    pub(super) x: u16,
    pub(super) width: u16,
}

/// All columns from left to right, with their least widths.
const ALL: [(Column, u16); 11] = [
    (Column::Name, 20),
    (Column::State, 11),
    (Column::Bar, 8),
    (Column::Sent, 6),
    (Column::Received, 6),
    (Column::Share, 6),
    (Column::P50, 6),
    (Column::P99, 6),
    (Column::InFlight, 7),
    (Column::Again, 6),
    (Column::Past, 8),
];

/// The columns in the order in which they get room.
const IMPORTANT: [Column; 11] = [
    Column::Name,
    Column::State,
    Column::Sent,
    Column::Received,
    Column::Share,
    Column::Bar,
    Column::P99,
    Column::Past,
    Column::P50,
    Column::InFlight,
    Column::Again,
];

/// The columns that get the room that is left, with the widths up to which they do, in turn.
const GROWING: [(Column, u16); 5] =
    [(Column::Name, 24), (Column::Bar, 12), (Column::Name, 44), (Column::Bar, 24), (Column::Past, 60)];

impl Column {
    fn least(self) -> u16 {
        ALL.iter().find(|(column, _)| *column == self).map_or(0, |(_, width)| *width)
    }

    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Name => "JOB, PEER, RAIL",
            Self::State => "STATE",
            Self::Bar => "BAR",
            Self::Sent => "SENT",
            Self::Received => "RECV",
            Self::Share => "SHARE",
            Self::P50 => "P50",
            Self::P99 => "P99",
            Self::InFlight => "FLIGHT",
            Self::Again => "AGAIN",
            Self::Past => "PAST",
        }
    }

    /// Returns true if its cells are numbers, which end at its right.
    pub(super) fn is_number(self) -> bool {
        !matches!(self, Self::Name | Self::State | Self::Bar)
    }

    /// Returns true if rows are sorted by it.
    pub(super) fn is_sorted(self, sort: Sort) -> bool {
        matches!(
            (self, sort),
            (Self::Name, Sort::Name)
                | (Self::Sent, Sort::Sent)
                | (Self::Received, Sort::Received)
                | (Self::Share, Sort::Share)
                | (Self::P99, Sort::Latency)
                | (Self::State, Sort::State)
        )
    }
}

/// Returns the columns for a table of this width.
pub(super) fn columns(width: u16) -> Vec<Placed> {
    let mut shown: Vec<(Column, u16)> = Vec::new();
    let mut left = width;
    for column in IMPORTANT {
        // Those of the first columns that are left get what there is.
        let gap = u16::from(!shown.is_empty());
        let needed = column.least() + gap;
        if needed > left && column != Column::Name {
            break;
        }
        let given = column.least().min(left);
        left -= given + gap.min(left - given);
        shown.push((column, given));
    }
    for (column, most) in GROWING {
        if let Some((_, width)) = shown.iter_mut().find(|(shown, _)| *shown == column) {
            let more = most.saturating_sub(*width).min(left);
            *width += more;
            left -= more;
        }
    }
    let mut x = 0;
    let in_order = ALL.iter().filter_map(|(column, _)| shown.iter().find(|(shown, _)| shown == column));
    let placed = in_order.map(|(column, width)| {
        let placed = Placed { column: *column, x, width: *width };
        x += width + 1;
        placed
    });
    placed.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_fit_whatever_the_width() {
        for width in 0..400 {
            let placed = columns(width);
            let mut end = 0;
            for (index, column) in placed.iter().enumerate() {
                assert!(index == 0 || column.x > end - 1, "{width}: {placed:?}");
                end = column.x + column.width;
            }
            assert!(end <= width, "{width}: {placed:?}");
            assert_eq!(placed[0].column, Column::Name);
        }
        let of = |width| columns(width).iter().map(|placed| placed.column).collect::<Vec<_>>();
        assert_eq!(of(10), [Column::Name]);
        assert_eq!(of(46), [Column::Name, Column::State, Column::Sent, Column::Received]);
        assert!(of(80).contains(&Column::Past) && !of(80).contains(&Column::P50));
        assert_eq!(of(200).len(), ALL.len());
    }
}
