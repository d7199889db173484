//! The tasks of the simulation, which the world keeps until their times come.

use railweave_transport::progress::Step;

use crate::faults::DeathKind;

/// Something that happens to the processes at a given time.
#[derive(Debug)]
pub(crate) enum Task {
    /// A process's progress thread takes a turn.
    Turn(usize),
    /// An application asks for a connection.
    Connect(usize),
    /// A timer of one end of a session expires.
    Timer { end: usize },
    /// A dialled socket reaches the process that it was dialled to.
    Arrive { socket: usize, to: usize },
    /// A dialled socket is connected.
    Connected { socket: usize },
    /// A frame arrives.
    Frame { socket: usize, to_opener: bool, bytes: Vec<u8> },
    /// An end sees that its socket has ended.
    SocketEnd { socket: usize, to_opener: bool },
    /// Something is due in the set-up of an end.
    SetUpDue { connection: usize, sender: bool },
    /// The peer of an offer that waits is told so.
    OfferNotice { end: usize, number: u32 },
    /// An acceptor has a place for an offer that has waited.
    TakeOffer { end: usize, number: u32 },
    /// The set-up thread has finished a step of an end's set-up, which it was given at this time.
    StepDone { connection: usize, sender: bool, step: Step, given_ns: u64 },
    /// An application closes its end, perhaps early.
    Close { connection: usize, sender: bool, early: bool },
    /// A process's control thread looks at the debts that it knows.
    Look(usize),
    /// The debt of a receiving end must have left.
    DebtDue(usize),
    /// A process's control thread handles the close of one end.
    Closed { connection: usize, sender: bool },
    /// A process's freeing thread destroys a closed end.
    Free { connection: usize, sender: bool },
    /// A process gives up because one of its connections failed.
    Abort(usize),
    /// The session of a connection breaks.
    Break { connection: usize },
    /// A stranger dials a process.
    Stranger,
    /// An event of the host tells a process that the device of a port, by its number in the world, has failed.
    DeviceEvent(usize),
    /// A process's control thread gives an order to one end of a connection, by its number in the plan.
    Order { connection: usize, number: usize },
    /// A death of the seed's plan.
    Death(DeathKind),
    /// An aimed death, by its number in the plan, after this many looks for its situation.
    Aim { number: usize, looks: u32 },
    /// A port that has fallen silent, by its number in the world, carries packets again.
    Heal(usize),
    /// The control thread of a process looks after the recovery of an end.
    Recover { connection: usize, sender: bool },
    /// The control thread of a process looks for rails of an end that have fallen silent.
    Listen { connection: usize, sender: bool },
    /// A thread of a process does work on a rail of an end, by the work's number there.
    Work { connection: usize, sender: bool, number: u32 },
}
