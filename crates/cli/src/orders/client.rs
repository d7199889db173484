//! One request to an agent, over the socket in its run dir.

use crate::output::printable;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use railweave_telemetry::Folder;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::fmt::{self, Write};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::UnixStream;

/// The longest time that a request and its answer may take.
const LONGEST: Duration = Duration::from_secs(5);

/// The largest answer of an agent of this user, and of another user's, in bytes: that one may be made up, and reading
/// it takes ten times its size.
const LARGEST_ANSWER: usize = 64 << 20;
const LARGEST_OF_OTHERS: usize = 8 << 20;

/// The most letters of a sentence of an agent that are repeated.
const LONGEST_SENTENCE: usize = 1000;

/// A request that had no good answer. Its text is a sentence that may go to a terminal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Nobody listens at the socket.
    Nobody(String),
    /// Somebody does, and gives no answer that an agent would give.
    Useless(String),
    /// The agent refuses, with this status.
    Refused(u16, String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Nobody(text) | Self::Useless(text) | Self::Refused(_, text)) = self;
        f.write_str(text)
    }
}

impl From<Failure> for String {
    fn from(failure: Failure) -> Self {
        failure.to_string()
    }
}

/// The socket of an agent, `agent.sock` in a run dir. Each request makes a connection of its own and takes 5 s at most,
/// and its answer has a bound: a user may have put anything there.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    socket: PathBuf,
    /// The owner of the run dir.
    owner: u32,
}

impl Client {
    /// Returns the client of the agent in an open run dir, whoever listens there.
    pub(crate) fn of(folder: &Folder) -> Self {
        Self { socket: folder.path().join("agent.sock"), owner: folder.owner() }
    }

    /// Returns the path of the socket.
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Returns the owner of the run dir.
    pub(crate) fn owner(&self) -> u32 {
        self.owner
    }

    /// Returns the JSON at a path of the API.
    ///
    /// # Errors
    /// If nobody listens, or there is no such answer.
    pub(crate) fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        self.read(&self.exchange(&Method::GET, path, None)?)
    }

    /// Gives an order, and returns the bytes of the answer.
    ///
    /// # Errors
    /// If nobody listens, or the agent refuses.
    pub(crate) fn order(&self, method: &Method, path: &str, body: Option<&Value>) -> Result<Vec<u8>, Failure> {
        self.exchange(method, path, body)
    }

    /// Reads an answer.
    ///
    /// # Errors
    /// If it is no JSON of this type.
    pub(crate) fn read<T: DeserializeOwned>(&self, body: &[u8]) -> Result<T, Failure> {
        serde_json::from_slice(body)
            .map_err(|error| self.useless(&format!("has answered with something else ({error})")))
    }

    /// Returns the failure of an agent whose answers are of no use: the sentence goes on with these words.
    pub(crate) fn useless(&self, words: &str) -> Failure {
        Failure::Useless(printable(&format!(
            "whoever listens at \"{}\" {words}; allowed: an agent of this release; try starting the agent there again",
            self.socket.display()
        )))
    }

    fn exchange(&self, method: &Method, path: &str, body: Option<&Value>) -> Result<Vec<u8>, Failure> {
        let failed = |error: io::Error| self.useless(&format!("cannot be asked: {error}"));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let answer = async {
            let late = format!("has not answered within {} s", LONGEST.as_secs());
            tokio::time::timeout(LONGEST, self.answer(method, path, body))
                .await
                .unwrap_or_else(|_| Err(self.useless(&late)))
        };
        let (status, body) = runtime.block_on(answer)?;
        if status.is_success() {
            return Ok(body);
        }
        #[derive(serde::Deserialize)]
        struct Said {
            error: String,
        }
        let Said { error } = self.read(&body)?;
        let sentence: String = printable(&error).chars().take(LONGEST_SENTENCE).collect();
        Err(Failure::Refused(status.as_u16(), sentence))
    }

    async fn answer(
        &self,
        method: &Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<(StatusCode, Vec<u8>), Failure> {
        let stream = self.connect().await?;
        let failed = |error: &dyn fmt::Display| self.useless(&format!("has answered with something else ({error})"));
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|error| failed(&error))?;
        // It ends with the runtime.
        tokio::spawn(async { connection.await.unwrap_or_default() });
        let bytes = body.map(|body| Bytes::from(body.to_string())).unwrap_or_default();
        let mut request = Request::builder().method(method).uri(path).header("Host", "localhost");
        if body.is_some() {
            request = request.header("Content-Type", "application/json");
        }
        let request = request.body(Full::new(bytes)).map_err(|error| failed(&error))?;
        let answer = sender.send_request(request).await.map_err(|error| failed(&error))?;
        let status = answer.status();
        let is_own = self.owner == rustix::process::geteuid().as_raw();
        let largest = if is_own { LARGEST_ANSWER } else { LARGEST_OF_OTHERS };
        let body = Limited::new(answer.into_body(), largest).collect().await.map_err(|error| failed(&error))?;
        Ok((status, body.to_bytes().into()))
    }

    /// Connects to the socket. The folder may belong to a user whom this user, root, does not trust: a link could lead
    /// to the socket of another service, so only a socket of the folder's owner counts, and the connection goes to the
    /// one that was looked at.
    async fn connect(&self) -> Result<UnixStream, Failure> {
        let nobody = |error: &dyn fmt::Display| {
            Failure::Nobody(printable(&format!("nobody listens at \"{}\": {error}", self.socket.display())))
        };
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file: OwnedFd =
            rustix::fs::open(&self.socket, flags, Mode::empty()).map_err(|error| nobody(&io::Error::from(error)))?;
        let facts = rustix::fs::fstat(&file).map_err(|error| nobody(&io::Error::from(error)))?;
        if FileType::from_raw_mode(facts.st_mode) != FileType::Socket {
            return Err(nobody(&"it is no socket"));
        }
        if facts.st_uid != self.owner {
            return Err(nobody(&format!("it belongs to user {}, and its folder to user {}", facts.st_uid, self.owner)));
        }
        // The path of a socket may also have 108 bytes at most, and this one always has.
        match UnixStream::connect(format!("/proc/self/fd/{}", file.as_raw_fd())).await {
            Ok(stream) => Ok(stream),
            Err(error) if error.raw_os_error() == Some(Errno::AGAIN.raw_os_error()) => {
                Err(self.useless("takes no more connections"))
            }
            Err(error) => Err(nobody(&error)),
        }
    }
}

/// Returns a text as a part of a path: all but letters, digits and a few signs percent-encoded (RFC 3986, section 2).
pub(crate) fn encoded(part: &str) -> String {
    part.bytes().fold(String::new(), |mut text, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            text.push(char::from(byte));
        } else {
            // Writing to a text does not fail.
            let _ = write!(text, "%{byte:02X}");
        }
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use railweave_telemetry::RunDir;
    use std::fs;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixListener;
    use std::thread::{self, JoinHandle};

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("railweave-client-{}-{name}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            RunDir::named(Some(&path)).make().unwrap();
            Self(path)
        }

        fn client(&self) -> Client {
            Client::of(&Folder::open(&self.0).unwrap())
        }

        /// Answers one request with these bytes, again and again if `endlessly`, until nobody reads them.
        fn answer(&self, bytes: &'static [u8], endlessly: bool) -> JoinHandle<String> {
            let listener = UnixListener::bind(self.0.join("agent.sock")).unwrap();
            thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                let mut request = vec![0; 1000];
                let size = stream.read(&mut request).unwrap();
                while stream.write_all(bytes).is_ok() && endlessly {}
                String::from_utf8_lossy(&request[..size]).into_owned()
            })
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn an_answer_is_read_and_a_refusal_is_its_sentence() {
        let scratch = Scratch::new("answer");
        let answer = scratch.answer(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n[7]", false);
        assert_eq!(scratch.client().get::<Vec<u32>>("/api/v1/drains"), Ok(vec![7]));
        let request = answer.join().unwrap();
        assert!(
            request.starts_with("GET /api/v1/drains HTTP/1.1\r\n") && request.contains("ost: localhost"),
            "{request}"
        );
        fs::remove_file(scratch.0.join("agent.sock")).unwrap();
        let body = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 21\r\n\r\n{\"error\":\"no\\u001b[31m\"}";
        let answer = scratch.answer(body, false);
        let body = serde_json::json!({"actions": "drain"});
        let refused = scratch.client().order(&Method::PUT, &format!("/r/{}", encoded("rail=a b")), Some(&body));
        answer.join().unwrap();
        assert!(matches!(refused, Err(Failure::Useless(_))), "the body is cut: {refused:?}");
    }

    #[test]
    fn a_refusal_is_fit_for_a_terminal() {
        let scratch = Scratch::new("refusal");
        let body = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 24\r\n\r\n{\"error\":\"no\\u001b[31m\"}";
        let answer = scratch.answer(body, false);
        let body = serde_json::json!({"actions": "drain"});
        let refused = scratch.client().order(&Method::PUT, &format!("/r/{}", encoded("rail=a b")), Some(&body));
        assert_eq!(refused, Err(Failure::Refused(400, "no\u{fffd}[31m".to_owned())));
        let request = answer.join().unwrap();
        assert!(request.starts_with("PUT /r/rail%3Da%20b HTTP/1.1\r\n"), "{request}");
    }

    #[test]
    fn rubbish_and_endless_answers_are_of_no_use() {
        for (name, bytes, endlessly) in [
            ("rubbish", &b"\x7fELF rubbish\r\n\r\n"[..], false),
            ("head", b"HTTP/1.1 200 OK\r\nx: y\r\n", false),
            ("no-json", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n<>", false),
            ("endless-head", b"x", true),
            ("endless", b"HTTP/1.1 200 OK\r\n\r\n[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[", true),
        ] {
            let scratch = Scratch::new(name);
            let answer = scratch.answer(bytes, endlessly);
            let result = scratch.client().get::<Value>("/");
            answer.join().unwrap();
            let Err(Failure::Useless(text)) = result else { panic!("{name}: {result:?}") };
            assert!(text.contains("has answered with something else") && text.lines().count() == 1, "{name}: {text}");
        }
    }

    #[test]
    fn only_a_socket_of_the_folders_owner_counts() {
        let scratch = Scratch::new("socket");
        let path = scratch.0.join("agent.sock");
        let nobody = |words: &str| match scratch.client().get::<Value>("/") {
            Err(Failure::Nobody(text)) => assert!(text.contains(words), "{text}"),
            other => panic!("{words}: {other:?}"),
        };
        nobody("No such file");
        drop(UnixListener::bind(&path).unwrap());
        nobody("Connection refused");
        let listener = UnixListener::bind(scratch.0.join("other")).unwrap();
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(scratch.0.join("other"), &path).unwrap();
        nobody("it is no socket");
        fs::remove_file(&path).unwrap();
        fs::write(&path, "").unwrap();
        nobody("it is no socket");
        fs::rename(scratch.0.join("other"), &path).unwrap();
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(65_534), None).unwrap();
            nobody("it belongs to user 65534");
        }
        drop(listener);
    }

    #[test]
    fn parts_of_a_path_are_encoded() {
        assert_eq!(encoded("eth0@10.0.0.1"), "eth0%4010.0.0.1");
        assert_eq!(encoded("rail=ä/?#%"), "rail%3D%C3%A4%2F%3F%23%25");
    }
}
