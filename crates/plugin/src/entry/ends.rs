//! Both ends of a connection as [`End`]s, for every fabric.

use railweave_fabric::Fabric;
use railweave_transport::{Error, Flushed, Incoming, RecvConnection, SendConnection};

use super::data_path::{calls_of_receiver, calls_of_sender};
use crate::comm::{Calls, End};

impl<F: Fabric> End for SendConnection<F>
where
    Self: Send,
{
    fn calls(&self) -> Calls {
        calls_of_sender::<F>()
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
        calls_of_receiver::<F>()
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
