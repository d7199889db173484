//! Tasks for which the players have the world wake them.

/// Something that is to be done at a time.
#[derive(Debug)]
pub(crate) enum Task {
    /// A process's progress thread takes a turn.
    Turn(usize),
    /// A connection is begun.
    Connect(usize),
    /// A timer of one end of a session has run out.
    Timer { talk: usize },
    /// A dialled socket arrives at the process that is wanted.
    Arrive { socket: usize, to: usize },
    /// A dialled socket is connected.
    Connected { socket: usize },
    /// A frame arrives.
    Frame { socket: usize, to_opener: bool, bytes: Vec<u8> },
    /// An end sees that its socket has ended.
    SocketEnd { socket: usize, to_opener: bool },
    /// The deadline of a handshake.
    Deadline { connection: usize, sender: bool },
    /// An end tries again to connect its rails.
    GoOn { connection: usize, sender: bool },
    /// An application closes its end.
    Close { connection: usize, sender: bool, early: bool },
    /// A process's control thread looks what its connections owe.
    Look(usize),
    /// A process gives up because one of its connections failed.
    Abort(usize),
    /// What the seed says dies now.
    Death,
}
