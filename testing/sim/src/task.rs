//! Tasks for which the players ask the world to wake them up.

/// Something to do at a given time.
#[derive(Debug)]
pub(crate) enum Task {
    /// A process's progress thread takes a turn.
    Turn(usize),
    /// An application asks for a connection.
    Connect(usize),
    /// A timer of one end of a session has expired.
    Timer { talk: usize },
    /// A dialled socket reaches the process that it was dialled to.
    Arrive { socket: usize, to: usize },
    /// A dialled socket is connected.
    Connected { socket: usize },
    /// A frame arrives.
    Frame { socket: usize, to_opener: bool, bytes: Vec<u8> },
    /// An end sees that its socket has ended.
    SocketEnd { socket: usize, to_opener: bool },
    /// The deadline of a handshake.
    Deadline { connection: usize, sender: bool },
    /// An end retries connecting its rails.
    GoOn { connection: usize, sender: bool },
    /// An application closes its end.
    Close { connection: usize, sender: bool, early: bool },
    /// A process's control thread checks what its connections owe.
    Look(usize),
    /// A process gives up because one of its connections failed.
    Abort(usize),
    /// The death that the seed has planned.
    Death,
}
