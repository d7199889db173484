//! Closed connections that linger: pending data goes out, and both ends say BYE.

use super::connection::{Connection, ConnectionSetup};
use super::control_loop::{ControlLoop, Entry};
use crate::comm::End;
use crate::comm::Route;

impl ControlLoop {
    /// Closes a connection of this side.
    pub(super) fn close(&mut self, route: Route, mut end: Box<dyn End>) {
        end.start_linger();
        let Some(session) = self.session(route.session) else {
            // Its session is gone.
            return self.free(end);
        };
        session.connections.insert(route.connection, Connection::Closed(end));
        self.lingering_connections += 1;
        self.with_session(route.session, |session, now| {
            let was_open = session.close(route.connection, now);
            debug_assert!(was_open, "only an open connection is closed");
        });
    }

    /// Lets a closed connection send what is pending, and tells the session whether it is drained.
    pub(super) fn linger_connection(&mut self, route: Route) {
        let Some(session) = self.session(route.session) else {
            return;
        };
        if let Some(Connection::Closed(end)) = session.connections.get_mut(&route.connection) {
            let is_drained = end.linger();
            let connection = route.connection;
            self.with_session(route.session, |session, now| session.handle_lingered(connection, is_drained, now));
        }
    }

    /// Frees a closed connection that no longer lingers.
    pub(super) fn free_lingered_connection(&mut self, route: Route) {
        let over = self.session(route.session).and_then(|session| session.connections.remove(&route.connection));
        if let Some(Connection::Closed(end)) = over {
            self.lingering_connections -= 1;
            self.free(end);
        }
    }

    /// Frees the closed connections that still linger, and the unfinished set-ups.
    pub(super) fn free_connections(mut self) {
        let entries = std::mem::take(&mut self.entries);
        for entry in entries.into_values() {
            let Entry::Session(session) = entry else {
                continue;
            };
            for connection in session.connections.into_values() {
                match connection {
                    Connection::Closed(end) => self.free(end),
                    Connection::Setup(ConnectionSetup { handshake: Some(handshake), .. }) => self.free(handshake),
                    Connection::Setup(_) | Connection::Open { .. } => {}
                }
            }
        }
    }
}
