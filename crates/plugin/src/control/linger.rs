//! Closed connections that linger: pending data goes out, and both ends say BYE.

use railweave_transport::Lingering;

use super::connection::{Connection, ConnectionSetup};
use super::control_loop::{ControlLoop, Entry};
use crate::comm::End;
use crate::comm::Route;

impl ControlLoop {
    /// Closes a connection of this side.
    pub(super) fn close(&mut self, route: Route, mut end: Box<dyn End>) {
        let now = self.now_ns();
        self.end_recovery(route);
        let Some(session) = self.session(route.session) else {
            // Its session is gone.
            end.start_linger();
            self.publish_freed(route);
            return self.free(end);
        };
        let closed = Lingering::begin(end, &mut session.protocol, route.connection, now);
        session.connections.insert(route.connection, Connection::Closed(closed));
        self.lingering_connections += 1;
        self.publish_closed(route);
        self.drive_session(route.session);
    }

    /// Lets a closed connection send what is pending, and tells the session whether it is drained.
    pub(super) fn linger_connection(&mut self, route: Route) {
        let now = self.now_ns();
        let Some(session) = self.session(route.session) else {
            return;
        };
        if let Some(Connection::Closed(closed)) = session.connections.get_mut(&route.connection) {
            closed.linger(&mut session.protocol, route.connection, now);
            self.drive_session(route.session);
        }
    }

    /// Frees a closed connection that no longer lingers.
    pub(super) fn free_lingered_connection(&mut self, route: Route) {
        let over = self.session(route.session).and_then(|session| session.connections.remove(&route.connection));
        if let Some(Connection::Closed(end)) = over {
            self.lingering_connections -= 1;
            self.publish_freed(route);
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
                    Connection::Setup(_) => {}
                    Connection::Open { mut recovery, .. } => self.free_lanes(recovery.take()),
                }
            }
        }
    }
}
