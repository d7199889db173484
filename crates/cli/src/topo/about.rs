//! The parts of an offer for a drawing: the nonce that says so, and the names that go with it as the text of a REFUSE.

use super::half::HalfDevice;
use super::half::HalfPort;

/// The nonce of an offer that asks for a drawing. A listener's nonce is random, so it is none of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Nonce {
    /// The round: 1 shows the ports, 2 also the ways to the other's ports.
    pub(crate) round: u8,
    /// The TCP port at which the sender awaits the other's own session.
    pub(crate) port: u16,
    /// The number of the offer, and the number of all of them.
    pub(crate) number: u8,
    pub(crate) count: u8,
}

const MAGIC: [u8; 3] = *b"RWT";

impl Nonce {
    /// Returns the nonce as it is on the wire.
    pub(crate) fn encode(self) -> u64 {
        let port = self.port.to_le_bytes();
        let [a, b, c] = MAGIC;
        u64::from_le_bytes([a, b, c, self.round, port[0], port[1], self.number, self.count])
    }

    /// Reads a nonce; `None` for an offer that wants a connection.
    pub(crate) fn decode(nonce: u64) -> Option<Self> {
        let [a, b, c, round, low, high, number, count] = nonce.to_le_bytes();
        let is_one = [a, b, c] == MAGIC && (1..=2).contains(&round) && number < count;
        let port = u16::from_le_bytes([low, high]);
        (is_one && port > 0).then_some(Self { round, port, number, count })
    }
}

/// The beginning of the text that names a device and its ports.
const BEGINNING: &str = "railweave topo:";

/// The text that says that an offer for a drawing has been read.
pub(crate) const SEEN: &str = "railweave topo: seen";

/// The longest name that is shown.
const MOST_NAME: usize = 128;

/// The longest name of a network interface (IFNAMSIZ of linux/if.h, less its zero).
const MOST_INTERFACE: usize = 15;

/// Returns the text that names a device and its ports.
pub(crate) fn describe(device: &HalfDevice, forwards: Option<bool>) -> String {
    let word = |name: &str| -> String {
        let name = name.chars().map(|c| if c.is_whitespace() || c == '/' { '_' } else { c });
        let name: String = name.collect();
        if name.is_empty() { "-".to_owned() } else { name }
    };
    let forwards = forwards.map_or("-", |is_on| if is_on { "1" } else { "0" });
    let mut text = format!("{BEGINNING} forwards={forwards} device={}", word(&device.name));
    for port in &device.ports {
        let interface = port.interface.as_deref().unwrap_or("-");
        let weight = port.weight.map_or_else(|| "-".to_owned(), |weight| weight.to_string());
        text += &format!(" port={}/{}/{weight}", word(&port.name), word(interface));
    }
    text
}

/// Takes the names from a text over to a device; names that are not there stay as they are. Returns the sender's word
/// on forwarding, `None` if it is not known.
///
/// # Errors
/// If the text names nothing: it is a refusal, in words.
pub(crate) fn read(text: &str, device: &mut HalfDevice) -> Result<Option<bool>, String> {
    let words = text.strip_prefix(BEGINNING).ok_or_else(|| text.to_owned())?;
    let mut forwards = None;
    let mut ports = device.ports.iter_mut();
    for word in words.split_whitespace() {
        match word.split_once('=') {
            Some(("forwards", value)) => forwards = Some(value == "1").filter(|_| value != "-"),
            Some(("device", name)) => device.name = name.chars().take(MOST_NAME).collect(),
            Some(("port", names)) => {
                if let Some(port) = ports.next() {
                    name_port(port, names);
                }
            }
            _ => {}
        }
    }
    Ok(forwards)
}

fn name_port(port: &mut HalfPort, names: &str) {
    let cut = |name: &str| name.chars().take(MOST_NAME).collect::<String>();
    let mut parts = names.split('/');
    // The text may be cut at its end.
    let (Some(name), Some(interface), Some(weight)) = (parts.next(), parts.next(), parts.next()) else { return };
    port.name = cut(name);
    // It becomes part of a command that its reader may run.
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._@:-".contains(&byte);
    let is_interface = interface != "-" && interface.len() <= MOST_INTERFACE && interface.bytes().all(is_plain);
    port.interface = is_interface.then(|| interface.to_owned());
    port.weight = weight.parse().ok();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topo::examples::port;

    #[test]
    fn nonces_come_out_as_they_went_in_and_a_listeners_is_none() {
        let nonce = Nonce { round: 2, port: 27_272, number: 3, count: 4 };
        assert_eq!(Nonce::decode(nonce.encode()), Some(nonce));
        for other in [
            Nonce { round: 3, ..nonce },
            Nonce { round: 0, ..nonce },
            Nonce { number: 4, ..nonce },
            Nonce { number: 0, count: 0, ..nonce },
        ] {
            assert_eq!(Nonce::decode(other.encode()), None, "{other:?}");
        }
        assert_eq!(Nonce::decode(nonce.encode() ^ 1), None);
    }

    #[test]
    fn names_cross_and_a_refusal_is_told_from_them() {
        let mut device =
            HalfDevice { name: "a b".into(), ports: vec![port("10.0.0.1/24"), port("10.1.0.1/24")], others: 1 };
        device.ports[0] = HalfPort {
            name: "mlx5_0".into(),
            interface: Some("enp1s0f0np0".into()),
            weight: Some(7),
            ..device.ports[0].clone()
        };
        let text = describe(&device, Some(true));
        let mut read_back =
            HalfDevice { name: String::new(), ports: vec![port("10.0.0.1/24"), port("10.1.0.1/24")], others: 1 };
        assert_eq!(read(&text, &mut read_back), Ok(Some(true)));
        let read_port = &read_back.ports[0];
        assert_eq!((read_back.name.as_str(), read_port.name.as_str()), ("a_b", "mlx5_0"));
        assert_eq!((read_port.interface.as_deref(), read_port.weight), (Some("enp1s0f0np0"), Some(7)));
        assert_eq!(read_back.ports[1].weight, None);
        // A text that was cut names fewer ports, and one more port than there are names nothing.
        for length in 0..text.len() {
            let _ = read(&text[..length], &mut read_back);
        }
        assert!(read(&format!("{text} port=x/y/1"), &mut read_back).is_ok());
        for odd in ["eth0;reboot", "$(reboot)", "sixteen-letters-", "e\u{e4}", "eth0"] {
            assert!(read(&format!("railweave topo: port=x/{odd}/1"), &mut read_back).is_ok());
            assert_eq!(read_back.ports[0].interface.as_deref(), (odd == "eth0").then_some(odd), "{odd}");
        }
        let refusal = "there is no such listener";
        assert_eq!(read(refusal, &mut read_back), Err(refusal.to_owned()));
    }
}
