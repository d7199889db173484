//! The steps of an application's calls on a connection that is up: how a thread takes the connection over, calls its
//! end, and leaves it, with a debt or without one; and how it closes the connection.
//!
//! Every call first takes the connection over ([`Debt::take_over`]), so that no other thread uses the end meanwhile.
//! Every call but one that posts a message, or a receive without leaving a debt, also settles the debt of the
//! connection that the thread left before ([`LastDebtor`]). If the thread leaves a debt here, and the control thread
//! does not know the connection, it hands the connection over to that thread ([`Debt::incur`]).
//!
//! A caller hands in how to get at its end exclusively. Each function here does so at most once, after the take-over,
//! and gives the end up before another thread may settle the debt. Unsafe code of callers rests on this paragraph.
//!
//! [`Debt::take_over`]: crate::Debt::take_over
//! [`Debt::incur`]: crate::Debt::incur

use std::ops::DerefMut;

use railweave_fabric::Fabric;

use crate::Error;
use crate::debtors::{Indebted, LastDebtor};
use crate::event::Event;
use crate::memory::{Incoming, Outgoing};
use crate::receive::{Flushed, RecvConnection, RecvRequest};
use crate::send::{SendConnection, SendRequest};

/// A connection that an application's threads call.
pub trait Callable: Indebted {
    /// The name of a connection that a thread left with a debt. The connection may be closed since.
    type Name;

    /// Returns its name.
    fn name(&self) -> Self::Name;

    /// Returns true if this is its name.
    fn is_named(&self, name: &Self::Name) -> bool;

    /// Settles the debt of the connection of this name, unless it is closed. If some of the debt is left, the control
    /// thread retries.
    fn settle_named(name: Self::Name);

    /// Waits a little for a settling in progress, which was checked for this many times.
    ///
    /// # Errors
    /// If the settling can never end.
    fn wait_for_settling(&self, checks: u32) -> Result<(), Error>;

    /// Passes the calling thread's last debtor to `leave`. May do nothing if this connection `owes` nothing, and no
    /// thread of this process has ever left one with a debt.
    fn with_last_debtor(&self, owes: bool, leave: impl FnOnce(&LastDebtor<Self::Name>));

    /// Has the control thread look after its debts ([`crate::Debtors::add`]).
    fn hand_over(&self);
}

/// Takes a connection over for a call, and returns its end.
#[inline(always)]
fn enter<G>(connection: &impl Callable, end: impl FnOnce() -> Result<G, Error>) -> Result<G, Error> {
    connection.debt().take_over(|checks| connection.wait_for_settling(checks))?;
    end()
}

/// Ends the calling thread's call on a connection, which `owes` its peer something or not.
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
/// Those of [`SendConnection::isend`], of `end` and of [`Callable::wait_for_settling`].
#[inline(always)]
pub fn isend<F: Fabric, G: DerefMut<Target = SendConnection<F>>>(
    connection: &impl Callable,
    end: impl FnOnce() -> Result<G, Error>,
    message: &Outgoing<'_>,
    handle_event: impl FnOnce(Event),
) -> Result<Option<SendRequest>, Error> {
    let mut end = enter(connection, end)?;
    // Handling all three results in one match would cost each message 12 instructions.
    let Some(sent) = end.isend(message).inspect_err(|_| leave(connection, false))? else {
        leave(connection, false);
        return Ok(None);
    };
    if let Some(event) = end.poll_event() {
        handle_event(event);
    }
    Ok(Some(sent))
}

/// Calls [`RecvConnection::irecv`].
///
/// # Errors
/// Those of [`RecvConnection::irecv`], of `end` and of [`Callable::wait_for_settling`].
#[inline(always)]
pub fn irecv<F: Fabric, G: DerefMut<Target = RecvConnection<F>>>(
    connection: &impl Callable,
    end: impl FnOnce() -> Result<G, Error>,
    buffers: &[Incoming<'_>],
    optional: bool,
) -> Result<Option<RecvRequest>, Error> {
    let mut end = enter(connection, end)?;
    let received = end.irecv(buffers, optional);
    let owes = end.owes();
    drop(end);
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
/// Those of [`SendConnection::test`], of `end` and of [`Callable::wait_for_settling`].
#[inline(always)]
pub fn test_send<F: Fabric, G: DerefMut<Target = SendConnection<F>>>(
    connection: &impl Callable,
    end: impl FnOnce() -> Result<G, Error>,
    request: SendRequest,
) -> Result<Option<u64>, Error> {
    let mut end = enter(connection, end)?;
    // Settles the previous connection's debt; the order does not matter.
    leave(connection, false);
    end.test(request)
}

/// Calls [`RecvConnection::test`]. If the request is done, its sizes are passed to `handle_done`.
///
/// # Errors
/// Those of [`RecvConnection::test`], of `end` and of [`Callable::wait_for_settling`].
#[inline(always)]
pub fn test_recv<F: Fabric, G: DerefMut<Target = RecvConnection<F>>>(
    connection: &impl Callable,
    end: impl FnOnce() -> Result<G, Error>,
    request: RecvRequest,
    handle_done: impl FnOnce(&[u64]),
) -> Result<(), Error> {
    let mut end = enter(connection, end)?;
    if F::ONE_SIDED {
        leave(connection, false);
    }
    let arrived = end.test(request);
    let failed = if let Ok(Some(sizes)) = arrived {
        handle_done(sizes);
        None
    } else {
        arrived.err()
    };
    if !F::ONE_SIDED {
        let owes = end.owes();
        drop(end);
        leave(connection, owes);
    }
    failed.map_or(Ok(()), Err)
}

/// Calls [`RecvConnection::iflush`].
///
/// # Errors
/// Those of [`RecvConnection::iflush`], of `end` and of [`Callable::wait_for_settling`].
pub fn iflush<F: Fabric, G: DerefMut<Target = RecvConnection<F>>>(
    connection: &impl Callable,
    end: impl FnOnce() -> Result<G, Error>,
    buffers: &[Incoming<'_>],
) -> Result<Flushed, Error> {
    let mut end = enter(connection, end)?;
    let flushed = end.iflush(buffers);
    let owes = end.owes();
    drop(end);
    leave(connection, owes);
    flushed
}

/// Closes a connection: returns its end, which `take` takes out of it, for the control thread. The debt of the
/// connection goes out while the end lingers.
///
/// # Errors
/// Those of [`Callable::wait_for_settling`].
pub fn close<E>(connection: &impl Callable, take: impl FnOnce() -> Option<E>) -> Result<Option<E>, Error> {
    enter(connection, || Ok(take()))
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

        fn wait_for_settling(&self, checks: u32) -> Result<(), Error> {
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
            let (debt, threads) = (Debt::new(), Rc::clone(&threads));
            Rc::new_cyclic(|itself| Connection { number, debt, threads, itself: Weak::clone(itself) })
        };
        (Rc::clone(&threads), [connection(0), connection(1)])
    }

    /// Makes a call, after which the connection `owes` its peer something or not.
    fn call(connection: &Connection, owes: bool) {
        enter(connection, || Ok(())).expect("no settling is in progress");
        leave(connection, owes);
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
}
