//! The fabric, put together from its parts.

use railweave_fabric::{Fabric, Joining, ProcessorClock};

use crate::domain::{TcpDomain, TcpPendingRail};
use crate::keys::TcpRegistration;
use crate::rail::TcpRail;
use crate::tcp::Tcp;

impl Fabric for Tcp {
    const NAME: &'static str = "tcp";
    const ONE_SIDED: bool = false;
    const JOINING: Joining<TcpPendingRail> = Joining::BySockets {
        awaits: TcpPendingRail::awaits_socket,
        attach: TcpPendingRail::attach,
        address: TcpPendingRail::address,
    };
    type Domain = TcpDomain;
    type PendingRail = TcpPendingRail;
    type Rail = TcpRail;
    type Registration = TcpRegistration;
    type Clock = ProcessorClock;
}
