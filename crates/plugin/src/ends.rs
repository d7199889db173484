//! The two ends of connections, whatever the fabric: what the control thread and the debts of threads need of one.
//! NCCL's calls on the data path do not come this way: `data_path` has them for each fabric.

use railweave_fabric::Fabric;
use railweave_transport::{ConnectionEnd, Error, Flushed, Incoming, RecvConnection, SendConnection};

use crate::data_path::Calls;

/// One end of a connection.
pub(crate) trait End: ConnectionEnd + Send {
    /// NCCL's calls on this kind of end: none but these may look into it.
    fn calls(&self) -> Calls;

    /// Makes what came into these buffers visible to their owner.
    ///
    /// # Errors
    /// When the connection is broken, or does not receive.
    fn iflush(&mut self, buffers: &[Incoming<'_>]) -> Result<Flushed, Error>;

    /// Whether the peer may be waiting for what this end has not sent yet.
    fn owes(&mut self) -> bool;

    /// Sends what this end owes the peer; whether all of it is on its way.
    fn acknowledge(&mut self) -> bool;
}

impl<F: Fabric> End for SendConnection<F>
where
    Self: Send,
{
    fn calls(&self) -> Calls {
        Calls::sending::<F>()
    }

    fn iflush(&mut self, _buffers: &[Incoming<'_>]) -> Result<Flushed, Error> {
        Err(Error::protocol("iflush was called on a connection that sends"))
    }

    fn owes(&mut self) -> bool {
        false
    }

    fn acknowledge(&mut self) -> bool {
        true
    }
}

impl<F: Fabric> End for RecvConnection<F>
where
    Self: Send,
{
    fn calls(&self) -> Calls {
        Calls::receiving::<F>()
    }

    fn iflush(&mut self, buffers: &[Incoming<'_>]) -> Result<Flushed, Error> {
        Self::iflush(self, buffers)
    }

    fn owes(&mut self) -> bool {
        Self::owes(self)
    }

    fn acknowledge(&mut self) -> bool {
        Self::acknowledge(self)
    }
}
