//! Both ends of a connection as [`End`]s, for every fabric.

use railweave_fabric::Fabric;
use railweave_transport::{RecvConnection, SendConnection};

use super::data_path::{calls_of_receiver, calls_of_sender};
use super::observed::{calls_of_watched_receiver, calls_of_watched_sender};
use crate::comm::{Calls, End};

impl<F: Fabric> End for SendConnection<F>
where
    Self: Send,
{
    fn calls(&self, is_observed: bool) -> Calls {
        if is_observed { calls_of_watched_sender::<F>() } else { calls_of_sender::<F>() }
    }

    fn sends(&self) -> bool {
        true
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
    fn calls(&self, is_observed: bool) -> Calls {
        if is_observed { calls_of_watched_receiver::<F>() } else { calls_of_receiver::<F>() }
    }

    fn sends(&self) -> bool {
        false
    }

    fn owes(&mut self) -> bool {
        Self::owes(self)
    }

    fn acknowledge(&mut self) -> bool {
        Self::acknowledge(self)
    }
}
