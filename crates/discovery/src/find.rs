//! The choice of the fabric.

use railweave_fabric::LeftOut;
use railweave_options::{Fabric, Options, name_settings};

use crate::error::{Error, Refusal};
use crate::found::Found;
use crate::interface::Interface;
use crate::note::{Note, Say};
use crate::{tcp, verbs};

/// Finds the fabric that the options ask for, its ports and its devices. `forces_flushes` is true if NCCL's API can
/// force flushes, as v9 and later can; otherwise, ports that need them on every GPU are not shown. `say` takes messages
/// that are worth logging but are not errors.
///
/// From this call on, the sentences of the whole process name settings by their variables ([`name_settings`]).
///
/// # Errors
/// If there is no usable port, or the options ask for something that this machine lacks.
pub fn find(options: &Options, forces_flushes: bool, say: Say<'_>) -> Result<Found, Error> {
    name_settings();
    let interfaces = Interface::list().map_err(Error::Interfaces)?;
    match options.fabric.value {
        Fabric::Tcp => tcp::find(options, &interfaces, say),
        Fabric::Verbs => verbs::find(options, &interfaces, forces_flushes, say).map_err(|refusal| match refusal {
            Refusal::Wrong(error) => error,
            Refusal::NoPort(reason) => {
                Error::Configuration(format!("RAILWEAVE_FABRIC=verbs: {reason}; or set RAILWEAVE_FABRIC=tcp or auto"))
            }
        }),
        Fabric::Auto => match verbs::find(options, &interfaces, forces_flushes, say) {
            Ok(found) => Ok(found),
            Err(Refusal::Wrong(error)) => Err(error),
            Err(Refusal::NoPort(reason)) => {
                say(Note::Information(format!("TCP is used, because RDMA cannot be: {reason}")));
                let mut found = tcp::find(options, &interfaces, say)?;
                found.left_out.push(LeftOut { name: "verbs".to_owned(), reason });
                Ok(found)
            }
        },
    }
}
