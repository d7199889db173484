//! Connections of this process with itself.

use railweave_bench::CommunicatorError;
use railweave_bench::ends::{Ends, listen};
use railweave_bench::patience::Patience;
use railweave_nccl_host::net::NetApi;

/// Sets up `count` connections, and returns both ends of each.
pub(crate) fn both<N: NetApi>(
    net: &N,
    device: i32,
    count: usize,
    patience: &mut Patience<'_>,
) -> Result<Ends, CommunicatorError> {
    let (listens, handles) = listen(net, device, count)?;
    Ends::open(net, device, listens, handles, patience, |connects, accepts| {
        let (connected, accepted) = (count - connects, count - accepts);
        format!(
            "connections of this process with itself: {connected} of {count} connects and {accepted} of {count} \
             accepts are done"
        )
    })
}
