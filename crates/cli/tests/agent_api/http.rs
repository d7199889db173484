//! Requests over one connection each, as HTTP/1.1 has them.

use std::io::{self, Read, Write};
use std::time::Duration;

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// The headers, with their names in lower case.
    headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(header, _)| *header == name.to_ascii_lowercase()).map(|(_, value)| &**value)
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// The time after which a connection on which nothing comes is given up.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

/// Returns the answer to a request. `headers` are lines without their ends.
pub(crate) fn exchange(
    mut stream: impl Read + Write,
    method: &str,
    path: &str,
    headers: &[&str],
    body: &str,
) -> io::Result<Answer> {
    let mut request = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n");
    headers.iter().for_each(|header| request.extend([*header, "\r\n"]));
    if !body.is_empty() {
        request += &format!("Content-Length: {}\r\n", body.len());
    }
    stream.write_all(format!("{request}\r\n{body}").as_bytes())?;
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        // It did not read the whole body.
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset && !answer.is_empty() => {}
        read => drop(read?),
    }
    let answer = String::from_utf8(answer).map_err(io::Error::other)?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or(io::ErrorKind::UnexpectedEof)?;
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok());
    let headers = lines.filter_map(|line| line.split_once(':'));
    Ok(Answer {
        status: status.ok_or(io::ErrorKind::InvalidData)?,
        headers: headers.map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned())).collect(),
        body: body.to_owned(),
    })
}
