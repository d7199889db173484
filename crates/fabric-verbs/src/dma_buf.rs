//! The place at which a dma-buf is registered. The kernel maps whole pages and refuses a range whose address and whose
//! offset in the dma-buf differ within a page (ibv_reg_dmabuf_mr(3), "iova").

/// A range of a dma-buf, and the address by which work names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Placement {
    pub(crate) iova: u64,
    pub(crate) offset: u64,
    pub(crate) length: usize,
}

impl Placement {
    /// Returns the placement of `length` bytes at `address`, on a system with pages of `page` bytes. `offset` is the
    /// place in the dma-buf of the first byte, or of the start of its page, as NCCL's own transport passes it
    /// (net_ib/reg.cc). Returns `None` if it is neither. With `whole_pages`, the range begins and ends on page
    /// boundaries, as Data Direct requires (mlx5dv_reg_dmabuf_mr(3)).
    pub(crate) fn new(address: u64, length: usize, offset: u64, page: u64, whole_pages: bool) -> Option<Self> {
        let within = address % page;
        let starts_page = match offset % page {
            0 if within > 0 => true,
            rest if rest == within => whole_pages,
            _ => return None,
        };
        if !starts_page {
            return Some(Self { iova: address, offset, length });
        }
        let length = within as usize + length;
        let whole = length.checked_next_multiple_of(page as usize).filter(|_| whole_pages);
        let length = whole.unwrap_or(length);
        Some(Self { iova: address - within, offset: offset - offset % page, length })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1024;

    fn placed(address: u64, length: usize, offset: u64, page: u64, whole_pages: bool) -> Option<(u64, u64, usize)> {
        let placement = Placement::new(address, length, offset, page, whole_pages)?;
        Some((placement.iova, placement.offset, placement.length))
    }

    #[test]
    fn what_the_kernel_takes_is_left_as_it_is() {
        for page in [4 * KIB, 16 * KIB, 64 * KIB] {
            let base = 0x7000_0000_0000;
            assert_eq!(placed(base, 100, 0, page, false), Some((base, 0, 100)));
            assert_eq!(placed(base + 3 * page, 1 << 20, page, page, false), Some((base + 3 * page, page, 1 << 20)));
            assert_eq!(
                placed(base + 0x123, 100, 5 * page + 0x123, page, false),
                Some((base + 0x123, 5 * page + 0x123, 100))
            );
        }
    }

    #[test]
    fn an_offset_of_the_page_means_the_page() {
        let base = 0x7000_0000_0000;
        assert_eq!(placed(base + 0x100, 0x1000, 0, 4 * KIB, false), Some((base, 0, 0x1100)));
        // The start of a page of 4 KiB may be in the middle of one of 64 KiB.
        assert_eq!(placed(base + 0x1000, 0x1000, 0, 4 * KIB, false), Some((base + 0x1000, 0, 0x1000)));
        assert_eq!(placed(base + 0x1000, 0x1000, 0, 64 * KIB, false), Some((base, 0, 0x2000)));
    }

    #[test]
    fn whole_pages_begin_and_end_with_one() {
        let base = 0x7000_0000_0000;
        for (page, end) in [(4 * KIB, 0x1000), (64 * KIB, 0x1_0000)] {
            assert_eq!(placed(base, 1, 0, page, true), Some((base, 0, end)));
            assert_eq!(placed(base + 0x100, end - 0x100, page + 0x100, page, true), Some((base, page, end)));
            assert_eq!(placed(base + 0x100, end - 0xff, page + 0x100, page, true), Some((base, page, 2 * end)));
            assert_eq!(placed(base + 0x100, 1, 0, page, true), Some((base, 0, end)));
        }
    }

    #[test]
    fn places_that_differ_within_a_page_are_refused() {
        for (address, offset) in [(0x1000, 0x10), (0x1010, 0x20), (0x1010, 0x1020)] {
            assert_eq!(Placement::new(address, 100, offset, 4 * KIB, false), None);
        }
    }
}
