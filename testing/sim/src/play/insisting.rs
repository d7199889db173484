//! Applications that make more calls on an end after one has returned an error.

use railweave_transport::Error;

use super::game::{Game, Side};
use super::stage::Stage;
use crate::Checker;

impl<const O: bool> Game<O> {
    /// Makes more calls on an end of which a call has returned an error: each must return the same error, and nothing
    /// may be posted.
    pub(super) fn insist(&mut self, side: Side, error: &Error) {
        let Side { connection, sender } = side;
        self.world.lock().observer.watch.posts_no_more(connection, sender, "a call on this end has returned an error");
        let world = self.world();
        let has_arrived = |group: usize| world.lock().observer.watch.connections[connection].is_over(group);
        let pair = &mut self.connections[connection];
        let results = match (sender, &mut pair.sender.stage, &mut pair.receiver.stage) {
            (true, Stage::Up(comm, app), _) => app.insist(comm),
            (false, _, Stage::Up(comm, app)) => app.insist(comm, has_arrived),
            _ => return,
        };
        for (call, result) in results {
            match result {
                None => self.violate(Checker::Errors, format!("{}: {call} was no error after {error}", side.who())),
                Some(later) if later.to_string() != error.to_string() => {
                    let text = format!("{}: {call} returned another error than the first: {later}", side.who());
                    self.violate(Checker::Errors, format!("{text}; {error}"));
                }
                Some(_) => {}
            }
        }
    }
}
