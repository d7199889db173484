//! The steps of an application's calls on a connection that is up: how a thread takes the connection over, calls its
//! end, and leaves it, with a debt or without one; how it closes the connection; and how another thread uses the end
//! between these calls.
//!
//! Every call first takes the connection over ([`Turn::enter`]), so that no other thread uses the end until it returns.
//! Every call also settles the debt of the connection that the thread left before ([`LastDebtor`]), except for those
//! that post a message, that post a receive without leaving a debt, or that find a request of a one-sided fabric done.
//! The control thread settles it within a millisecond in any case. If the thread leaves a debt here, and the control
//! thread does not know the connection, it hands the connection over to that thread ([`Debt::incur`]).
//!
//! A caller hands in how to get at its end exclusively. Each function here does so at most once, after the take-over,
//! and gives the end up before another thread may settle the debt or take the turn. Unsafe code of callers rests on
//! this paragraph.
//!
//! [`Debt::incur`]: crate::Debt::incur

use std::ops::DerefMut;

use railweave_fabric::Fabric;

use crate::Error;
use crate::debtors::{Indebted, LastDebtor};
use crate::event::Event;
use crate::memory::{Incoming, Outgoing};
use crate::receive::{Flushed, RecvConnection, RecvRequest};
use crate::send::{SendConnection, SendRequest};
use crate::turn::{InCall, Turn};

/// A connection that an application's threads call.
pub trait Callable: Indebted {
    /// The name of a connection that a thread left with a debt. The connection may be closed since.
    type Name;

    /// Returns the turns on its end.
    fn turn(&self) -> &Turn;

    /// Returns its name.
    fn name(&self) -> Self::Name;

    /// Returns true if this is its name.
    fn is_named(&self, name: &Self::Name) -> bool;

    /// Settles the debt of the connection of this name, unless it is closed. If some of the debt is left, the control
    /// thread retries.
    fn settle_named(name: Self::Name);

    /// Waits a little for another thread that uses the end, for a settling or in its turn. The end of that was checked
    /// for this many times.
    ///
    /// # Errors
    /// If it can never end.
    fn wait_for_others(&self, checks: u32) -> Result<(), Error>;

    /// Passes the calling thread's last debtor to `leave`. May do nothing if this connection `owes` nothing, and no
    /// thread of this process has ever left one with a debt.
    fn with_last_debtor(&self, owes: bool, leave: impl FnOnce(&LastDebtor<Self::Name>));

    /// Has the control thread look after its debts ([`crate::Debtors::add`]).
    fn hand_over(&self);
}

/// A call that has taken a connection over. The fields are dropped in this order: the end is given up first.
struct Call<'a, G> {
    end: G,
    _turn: InCall<'a>,
}

/// Takes a connection over for a call, which may have to do with a debt or not, and gets its end.
#[inline(always)]
fn enter<G>(
    connection: &impl Callable,
    may_owe: bool,
    end: impl FnOnce() -> Result<G, Error>,
) -> Result<Call<'_, G>, Error> {
    let debt = may_owe.then(|| connection.debt());
    let turn = connection.turn().enter(debt, move |checks| connection.wait_for_others(checks))?;
    Ok(Call { end: end()?, _turn: turn })
}

/// Settles the debt of the connection that the calling thread left before, and notes that it now leaves this one, which
/// `owes` its peer something or not.
#[inline(always)]
fn leave<C: Callable>(connection: &C, owes: bool) {
    connection.with_last_debtor(owes, move |last| {
        last.leave(owes, |name| connection.is_named(name), || connection.name(), C::settle_named);
        if owes && connection.debt().incur() {
            connection.hand_over();
        }
    });
}

/// Calls [`SendConnection::isend`]. If the message was taken, an event of the connection is passed to `handle_event`.
///
/// # Errors
/// Those of [`SendConnection::isend`], of `end` and of [`Callable::wait_for_others`].
#[inline(always)]
pub fn isend<F: Fabric, G: DerefMut<Target = SendConnection<F>>>(
    connection: &impl Callable,
    end: impl FnOnce() -> Result<G, Error>,
    message: &Outgoing<'_>,
    handle_event: impl FnOnce(Event),
) -> Result<Option<SendRequest>, Error> {
    let mut call = enter(connection, !F::ONE_SIDED, end)?;
    // Handling all three results in one match would cost each message 12 instructions.
    let Some(sent) = call.end.isend(message).inspect_err(|_| leave(connection, false))? else {
        leave(connection, false);
        return Ok(None);
    };
    if let Some(event) = call.end.poll_event() {
        handle_event(event);
    }
    Ok(Some(sent))
}

/// Calls [`RecvConnection::irecv`].
///
/// # Errors
/// Those of [`RecvConnection::irecv`], of `end` and of [`Callable::wait_for_others`].
#[inline(always)]
pub fn irecv<F: Fabric, G: DerefMut<Target = RecvConnection<F>>>(
    connection: &impl Callable,
    end: impl FnOnce() -> Result<G, Error>,
    buffers: &[Incoming<'_>],
    optional: bool,
) -> Result<Option<RecvRequest>, Error> {
    let mut call = enter(connection, !F::ONE_SIDED, end)?;
    let received = call.end.irecv(buffers, optional);
    let owes = call.end.owes();
    drop(call.end);
    // Errors leave here, so that the result need not lie in memory: that would cost each receive 16 instructions.
    let posted = match received {
        Ok(posted) => posted,
        Err(error) => {
            leave(connection, owes);
            return Err(error);
        }
    };
    // A thread that posted a receive will post or test more. Its debt on another connection may still go out with that.
    if posted.is_none() || owes {
        leave(connection, owes);
    }
    Ok(posted)
}

/// Calls [`SendConnection::test`].
///
/// # Errors
/// Those of [`SendConnection::test`], of `end` and of [`Callable::wait_for_others`].
#[inline(always)]
pub fn test_send<F: Fabric, G: DerefMut<Target = SendConnection<F>>>(
    connection: &impl Callable,
    end: impl FnOnce() -> Result<G, Error>,
    request: SendRequest,
) -> Result<Option<u64>, Error> {
    let mut call = enter(connection, !F::ONE_SIDED, end)?;
    let sent = call.end.test(request);
    if !(F::ONE_SIDED && matches!(sent, Ok(Some(_)))) {
        leave(connection, false);
    }
    sent
}

/// Calls [`RecvConnection::test`]. If the request is done, its sizes are passed to `handle_done`.
///
/// # Errors
/// Those of [`RecvConnection::test`], of `end` and of [`Callable::wait_for_others`].
#[inline(always)]
pub fn test_recv<F: Fabric, G: DerefMut<Target = RecvConnection<F>>>(
    connection: &impl Callable,
    end: impl FnOnce() -> Result<G, Error>,
    request: RecvRequest,
    handle_done: impl FnOnce(&[u64]),
) -> Result<(), Error> {
    let mut call = enter(connection, !F::ONE_SIDED, end)?;
    let arrived = call.end.test(request);
    let failed = if let Ok(Some(sizes)) = arrived {
        handle_done(sizes);
        if F::ONE_SIDED {
            return Ok(());
        }
        None
    } else {
        arrived.err()
    };
    let owes = call.end.owes();
    drop(call.end);
    leave(connection, owes);
    failed.map_or(Ok(()), Err)
}

/// Lets the application's thread look at its end after a call, for a profiler or a trace: `look` does so, and returns
/// true as well if the end then owes its peer something, which it `may_owe` on a fabric that is not one-sided: the note
/// of the debt that the call has left is taken over here, and made again.
///
/// # Errors
/// Those of `end` and of [`Callable::wait_for_others`].
pub fn look<E, R>(
    connection: &impl Callable,
    may_owe: bool,
    end: impl FnOnce() -> Result<E, Error>,
    look: impl FnOnce(&mut E) -> (R, bool),
) -> Result<R, Error> {
    let mut call = enter(connection, may_owe, end)?;
    let (result, owes) = look(&mut call.end);
    drop(call.end);
    leave(connection, owes);
    Ok(result)
}

/// Calls [`RecvConnection::iflush`].
///
/// # Errors
/// Those of [`RecvConnection::iflush`], of `end` and of [`Callable::wait_for_others`].
pub fn iflush<F: Fabric, G: DerefMut<Target = RecvConnection<F>>>(
    connection: &impl Callable,
    end: impl FnOnce() -> Result<G, Error>,
    buffers: &[Incoming<'_>],
) -> Result<Flushed, Error> {
    let mut call = enter(connection, !F::ONE_SIDED, end)?;
    let flushed = call.end.iflush(buffers);
    let owes = call.end.owes();
    drop(call.end);
    leave(connection, owes);
    flushed
}

/// Closes a connection: returns its end, which `take` takes out of it, for the control thread. The debt of the
/// connection goes out while the end lingers. Nobody gets at the end through the connection afterwards.
///
/// # Errors
/// Those of [`Callable::wait_for_others`].
pub fn close<E>(connection: &impl Callable, take: impl FnOnce() -> Option<E>) -> Result<Option<E>, Error> {
    Ok(enter(connection, true, || Ok(take()))?.end)
}

/// Lets a thread that is not the application's use the end between two calls: `use_end` gets at it, and returns true
/// as well if the end then owes its peer something. Returns `None` as [`Turn::take`] does with this `barrier` and this
/// `wait`; then the thread may retry later.
///
/// A call of the application that comes meanwhile waits, so `use_end` must take little time.
pub fn between<R>(
    connection: &impl Callable,
    barrier: impl FnOnce() -> bool,
    wait: impl FnMut(u32) -> bool,
    use_end: impl FnOnce() -> (R, bool),
) -> Option<R> {
    let turn = connection.turn().take(connection.debt(), barrier, wait)?;
    let (result, owes) = use_end();
    if turn.give_back(owes) {
        connection.hand_over();
    }
    Some(result)
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::rc::{Rc, Weak};

    use super::*;
    use crate::Debt;

    /// A thread that makes calls, and the control thread.
    #[derive(Default)]
    struct Threads {
        last: LastDebtor<Weak<Connection>>,
        settled: RefCell<Vec<u32>>,
        handed_over: RefCell<Vec<u32>>,
    }

    struct Connection {
        number: u32,
        debt: Debt,
        turn: Turn,
        threads: Rc<Threads>,
        itself: Weak<Self>,
    }

    impl Indebted for Connection {
        fn debt(&self) -> &Debt {
            &self.debt
        }

        fn settle(&self) -> bool {
            self.debt.settle(|| {
                self.threads.settled.borrow_mut().push(self.number);
                true
            })
        }
    }

    impl Callable for Connection {
        type Name = Weak<Self>;

        fn turn(&self) -> &Turn {
            &self.turn
        }

        fn name(&self) -> Weak<Self> {
            Weak::clone(&self.itself)
        }

        fn is_named(&self, name: &Weak<Self>) -> bool {
            Weak::ptr_eq(name, &self.itself)
        }

        fn settle_named(name: Weak<Self>) {
            if let Some(connection) = name.upgrade() {
                connection.settle();
            }
        }

        fn wait_for_others(&self, checks: u32) -> Result<(), Error> {
            if checks < 3 { Ok(()) } else { Err(Error::protocol("the settling never ends")) }
        }

        fn with_last_debtor(&self, _owes: bool, leave: impl FnOnce(&LastDebtor<Weak<Self>>)) {
            leave(&self.threads.last);
        }

        fn hand_over(&self) {
            self.threads.handed_over.borrow_mut().push(self.number);
        }
    }

    fn connections() -> (Rc<Threads>, [Rc<Connection>; 2]) {
        let threads = Rc::new(Threads::default());
        let connection = |number| {
            let (debt, turn, threads) = (Debt::new(), Turn::new(true), Rc::clone(&threads));
            Rc::new_cyclic(|itself| Connection { number, debt, turn, threads, itself: Weak::clone(itself) })
        };
        (Rc::clone(&threads), [connection(0), connection(1)])
    }

    /// Makes a call, after which the connection `owes` its peer something or not.
    fn call(connection: &Connection, owes: bool) {
        let call = enter(connection, true, || Ok(())).expect("nobody else uses the end");
        leave(connection, owes);
        drop(call);
    }

    #[test]
    fn a_connection_is_handed_over_at_its_first_debt() {
        let (threads, [first, second]) = connections();
        for (connection, owes) in [(&first, false), (&first, true), (&first, true), (&second, true), (&first, true)] {
            call(connection, owes);
        }
        assert_eq!(*threads.handed_over.borrow(), [0, 1]);
    }

    #[test]
    fn a_look_after_a_call_leaves_the_debt_of_the_call() {
        let (threads, [first, second]) = connections();
        for owes in [true, false] {
            call(&first, owes);
            let looked = look(&*first, true, || Ok(7), |end| (*end, owes));
            assert_eq!(looked, Ok(7));
            call(&second, false);
        }
        assert_eq!(*threads.settled.borrow(), [0], "once, for the call that left a debt");
    }

    #[test]
    fn a_call_settles_the_debt_of_the_connection_that_the_thread_left_before() {
        let (threads, [first, second]) = connections();
        call(&first, true);
        call(&first, true);
        assert!(threads.settled.borrow().is_empty(), "the call itself sends what the connection owes");
        call(&second, false);
        assert_eq!(*threads.settled.borrow(), [0]);
        call(&first, true);
        drop(first);
        call(&second, true);
        assert_eq!(*threads.settled.borrow(), [0], "a closed connection owes nothing");
    }

    #[test]
    fn nobody_gets_at_an_end_whose_debt_is_being_settled() {
        let (_threads, [connection, _]) = connections();
        call(&connection, true);
        let end = Cell::new(Some(7));
        connection.debt.settle(|| {
            close(&*connection, || end.take()).expect_err("the settling goes on");
            true
        });
        assert_eq!(close(&*connection, || end.take()), Ok(Some(7)));
        assert_eq!(close(&*connection, || end.take()), Ok(None), "it is closed");
    }

    #[test]
    fn another_thread_gets_at_an_end_between_calls_and_at_none_once_it_is_closed() {
        let (threads, [connection, _]) = connections();
        let end = Cell::new(Some(7));
        let use_end = |owes| between(&*connection, || true, |_| false, || (end.get(), owes));
        assert_eq!(use_end(false), Some(Some(7)));
        let during = enter(&*connection, true, || Ok(use_end(false))).map(|call| call.end);
        assert_eq!(during, Ok(None), "the application is in a call");
        assert_eq!(between(&*connection, || false, |_| false, || (end.get(), false)), None, "the barrier failed");
        assert!(enter(&*connection, true, || Err::<(), _>(Error::protocol("no end"))).is_err());
        assert_eq!(use_end(true), Some(Some(7)), "a call that failed is over too");
        assert_eq!(*threads.handed_over.borrow(), [0], "of the debt that it leaves");
        assert_eq!(close(&*connection, || end.take()), Ok(Some(7)));
        assert_eq!(use_end(false), Some(None));
    }

    #[test]
    fn an_application_waits_while_another_thread_uses_the_end() {
        let (_threads, [connection, _]) = connections();
        let inside =
            between(&*connection, || true, |_| false, || (enter(&*connection, true, || Ok(())).is_err(), false));
        assert_eq!(inside, Some(true), "as long as it is asked to");
        call(&connection, false);
    }
}
