//! A barrier for all threads of the process (membarrier(2)), which makes NCCL's calls cheap: they need none of their
//! own.

use std::sync::OnceLock;

/// Returns true if the system has the barrier for this process. Some sandboxes refuse the system call.
pub(super) fn is_there() -> bool {
    static IS_THERE: OnceLock<bool> = OnceLock::new();
    *IS_THERE.get_or_init(|| command(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED))
}

/// Makes every thread of the process pass a full barrier. Returns false if the system refuses.
pub(super) fn pass() -> bool {
    // A forked child has to register again; this costs nothing otherwise.
    command(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED)
        || command(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) && command(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED)
}

fn command(command: libc::c_int) -> bool {
    // SAFETY: the call takes numbers only, and changes nothing that a thread can see.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_barrier_works_where_it_is_there() {
        assert_eq!(super::pass(), super::is_there());
    }
}
