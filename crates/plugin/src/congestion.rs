//! The congestion control of lanes over TCP (`RAILWEAVE_TCP_CONGESTION`).

use std::fs;
use std::io;

use railweave_options::{Congestion, Setting};
use railweave_transport::Error;
use socket2::{Domain, SockRef, Socket, Type};

/// The congestion control of all lanes of this process.
#[derive(Clone)]
pub(crate) struct LaneCongestion(Congestion);

impl LaneCongestion {
    /// Returns the congestion control of the setting, once the kernel has accepted it on a socket.
    ///
    /// # Errors
    /// If the kernel does not have this congestion control, or refuses it to this user.
    pub(crate) fn new(setting: &Setting<Congestion>) -> Result<Self, Error> {
        let chosen = Self(setting.value.clone());
        let Congestion::Named(name) = &setting.value else {
            return Ok(chosen);
        };
        let tried = Socket::new(Domain::IPV4, Type::STREAM, None).and_then(|socket| chosen.set(&socket, false));
        match tried {
            Ok(()) => Ok(chosen),
            Err(error) => {
                let list = "/proc/sys/net/ipv4/tcp_available_congestion_control";
                let available = fs::read_to_string(list).unwrap_or_default();
                Err(Error::configuration(format!(
                    "{}={name}: the kernel refuses this congestion control: {error}; \
                     it has {} ({list}): name one of them, have root load the module tcp_{name}, or add it to \
                     tcp_allowed_congestion_control",
                    setting.source,
                    available.split_whitespace().collect::<Vec<_>>().join(", "),
                )))
            }
        }
    }

    /// Sets the congestion control of a socket. `inside_host`: both ends are on this host.
    pub(crate) fn set<'a>(&self, socket: impl Into<SockRef<'a>>, inside_host: bool) -> io::Result<()> {
        let Some(name) = self.0.name(inside_host) else {
            return Ok(());
        };
        match socket.into().set_tcp_congestion(name.as_bytes()) {
            // The user did not name it: a system without it keeps its default.
            Err(_) if self.0 == Congestion::Auto => Ok(()),
            result => result,
        }
    }
}
