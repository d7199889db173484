//! The key that all processes of a job share (`RAILWEAVE_KEY_FILE`), and the proof that a peer has it.
#![allow(unsafe_code)] // geteuid, which std does not have

use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use hmac::{Hmac, KeyInit, Mac};
use railweave_transport::{Error, LANE_PROOF_BYTES, LanePreface, Prover, Side, Token};
use sha2::Sha256;

const SHORTEST: usize = 16;
const LONGEST: usize = 4096;

/// The number of different bytes that a key must have. Sixteen random bytes fall short of it less than once in 10^15
/// times, and sixteen random decimal digits less than once in 10,000 times.
const FEWEST_DIFFERENT: usize = 5;

/// A shared key.
#[derive(Clone)]
pub struct Key(Hmac<Sha256>);

impl Key {
    /// Reads the key.
    ///
    /// # Errors
    /// If the file cannot be read, others have access to it, or the key is too short, too long or easy to guess.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let wrong = |what: String| Error::configuration(format!("RAILWEAVE_KEY_FILE={}: {what}", path.display()));
        let unreadable = |error: std::io::Error| wrong(format!("{error}; give a file that this user can read"));
        // Without O_NONBLOCK, opening a pipe that has no writer would wait forever. It does not affect reads of a file.
        let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(unreadable)?;
        // Taken from the open file, because the path may lead to another file by now.
        let facts = file.metadata().map_err(unreadable)?;
        if !facts.is_file() {
            return Err(wrong("this is not a regular file".to_owned()));
        }
        // SAFETY: the call has no arguments and always succeeds (geteuid(2)).
        let user = unsafe { libc::geteuid() };
        if facts.uid() != user && facts.uid() != 0 {
            return Err(wrong(format!(
                "it belongs to user {}; only this user's ({user}) or root's file is accepted",
                facts.uid()
            )));
        }
        if facts.mode() & 0o077 != 0 {
            return Err(wrong(format!(
                "others have access to it (mode {:04o}); only its owner may: chmod 600 it, and make a new key",
                facts.mode() & 0o7777
            )));
        }
        let mut secret = Vec::new();
        file.take(LONGEST as u64 + 1).read_to_end(&mut secret).map_err(unreadable)?;
        if !(SHORTEST..=LONGEST).contains(&secret.len()) {
            return Err(wrong(format!(
                "it has {} bytes; allowed: {SHORTEST} to {LONGEST}; make one with: head -c 32 /dev/urandom",
                if secret.len() > LONGEST { "more than 4096".to_owned() } else { secret.len().to_string() }
            )));
        }
        if let Some(weakness) = weakness(&secret) {
            return Err(wrong(format!(
                "{weakness}, so that it can be guessed; make one with: head -c 32 /dev/urandom"
            )));
        }
        let mac = Hmac::new_from_slice(&secret).map_err(|_| wrong("it cannot be used as a key".to_owned()))?;
        Ok(Self(mac))
    }

    /// Returns the proof that the dialler of a lane sends with its token.
    pub fn lane_proof(&self, token: Token, rail: u8, lane: u8) -> [u8; LANE_PROOF_BYTES] {
        let mac = self.lane_mac(token, rail, lane).finalize().into_bytes();
        std::array::from_fn(|at| mac[at])
    }

    /// Returns true if a lane's dialler has the key. Takes the same time whatever is wrong with the proof.
    pub fn is_lane(&self, lane: &LanePreface) -> bool {
        self.lane_mac(lane.token, lane.rail, lane.lane).verify_truncated_left(&lane.proof).is_ok()
    }

    fn lane_mac(&self, token: Token, rail: u8, lane: u8) -> Hmac<Sha256> {
        let mut mac = self.0.clone();
        mac.update(b"railweave lane 1");
        mac.update(&token.0);
        mac.update(&[rail, lane]);
        mac
    }

    /// Computes HMAC-SHA256 over the role of a session's end and both HELLOs, including their nonces. The role prevents
    /// a proof from being sent back to the end that made it.
    fn session_mac(&self, side: Side, opener_hello: &[u8], acceptor_hello: &[u8]) -> Hmac<Sha256> {
        let role = match side {
            Side::Opener => 1,
            Side::Acceptor => 2,
        };
        let mut mac = self.0.clone();
        mac.update(b"railweave proof 1");
        mac.update(&[role]);
        // With their lengths, so that no byte can move from one HELLO to the other.
        for hello in [opener_hello, acceptor_hello] {
            mac.update(&(hello.len() as u64).to_le_bytes());
            mac.update(hello);
        }
        mac
    }
}

impl Prover for Key {
    fn proof(&self, side: Side, opener_hello: &[u8], acceptor_hello: &[u8]) -> [u8; 32] {
        self.session_mac(side, opener_hello, acceptor_hello).finalize().into_bytes().into()
    }

    fn is_proof(&self, side: Side, opener_hello: &[u8], acceptor_hello: &[u8], proof: &[u8; 32]) -> bool {
        self.session_mac(side, opener_hello, acceptor_hello).verify_slice(proof).is_ok()
    }
}

/// Returns, as a clause, why a key of the right length can be guessed. `None` does not prove that the key is good.
fn weakness(secret: &[u8]) -> Option<String> {
    let mut different = secret.to_vec();
    different.sort_unstable();
    different.dedup();
    if different.len() < FEWEST_DIFFERENT {
        return Some(format!(
            "its {} bytes repeat (different ones: {}; needed: {FEWEST_DIFFERENT})",
            secret.len(),
            different.len()
        ));
    }
    let line = secret.trim_ascii();
    let is_padded = line.is_ascii() && line.len() < SHORTEST;
    is_padded.then(|| format!("it holds a text of only {} characters, and blanks", line.len()))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;

    use super::*;

    fn file(name: &str, bytes: &[u8], mode: u32) -> PathBuf {
        let path = std::env::temp_dir().join(format!("railweave-key-{}-{name}", std::process::id()));
        fs::write(&path, bytes).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    /// Makes a named pipe without a writer.
    fn fifo(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("railweave-key-{}-{name}", std::process::id()));
        // An earlier process of this number may have left one.
        let _ = fs::remove_file(&path);
        let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: the name is a C string, which the call only reads.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0, "{}", std::io::Error::last_os_error());
        path
    }

    #[test]
    fn random_keys_are_accepted() {
        for key in
            [b"3141592653589793".as_slice(), b"0123456789abcdef", &[1, 2, 3, 4, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff]]
        {
            assert_eq!(weakness(key), None, "{key:?}");
        }
    }

    #[test]
    fn a_proof_holds_for_its_maker_its_key_and_its_session_alone() {
        let key = Key::read(&file("good", b"one key of thirty-two characters", 0o600)).unwrap();
        let other = Key::read(&file("other", b"two keys: sixteen or more", 0o400)).unwrap();
        let proof = key.proof(Side::Opener, b"one", b"two");
        assert!(key.is_proof(Side::Opener, b"one", b"two", &proof));
        assert!(!key.is_proof(Side::Acceptor, b"one", b"two", &proof), "sent back to its maker");
        assert!(!key.is_proof(Side::Opener, b"one", b"tw2", &proof), "another session");
        assert!(!key.is_proof(Side::Opener, b"onet", b"wo", &proof), "the same bytes, cut elsewhere");
        assert!(!other.is_proof(Side::Opener, b"one", b"two", &proof), "another key");
    }

    #[test]
    fn a_lane_is_proved_for_itself_alone() {
        let key = Key::read(&file("lane", b"one key of thirty-two characters", 0o600)).unwrap();
        let other = Key::read(&file("other-lane", b"two keys: sixteen or more", 0o600)).unwrap();
        let token = Token([1; 16]);
        let lane = LanePreface { token, rail: 2, lane: 3, proof: key.lane_proof(token, 2, 3) };
        assert!(key.is_lane(&lane));
        assert!(!key.is_lane(&LanePreface { lane: 4, ..lane }), "another lane");
        assert!(!key.is_lane(&LanePreface { rail: 3, ..lane }), "another rail");
        assert!(!key.is_lane(&LanePreface { token: Token([2; 16]), ..lane }), "another connection");
        assert!(!key.is_lane(&LanePreface { proof: [0; LANE_PROOF_BYTES], ..lane }), "none");
        assert!(!other.is_lane(&lane), "another key");
    }

    #[test]
    fn a_key_that_others_can_read_or_that_is_no_key_is_refused_in_words() {
        let cases = [
            (file("open", &[7; 32], 0o644), "chmod 600"),
            (file("short", &[7; 15], 0o600), "15 bytes"),
            (file("long", &[7; 4097], 0o600), "more than 4096"),
            (PathBuf::from("/nonexistent/key"), "No such file"),
            (PathBuf::from("/dev/null"), "not a regular file"),
            (fifo("pipe"), "not a regular file"),
            (
                file("zeros", &[0; 32], 0o600),
                "its 32 bytes repeat (different ones: 1; needed: 5), so that it can be guessed",
            ),
            (file("few", b"abcdabcdabcdabcd", 0o600), "different ones: 4"),
            (file("password", b"password\n\n\n\n\n\n\n\n\n", 0o600), "a text of only 8 characters"),
        ];
        for (path, words) in cases {
            let error = Key::read(&path).map(|_| ()).unwrap_err();
            assert!(error.to_string().contains(words) && error.to_string().contains("RAILWEAVE_KEY_FILE"), "{error}");
        }
    }
}
