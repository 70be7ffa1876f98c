//! A server of one thread for each connection, for what no library is asked to do: to break off, and to change its mind.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

/// What was asked.
pub struct Asked {
    /// `GET`, `HEAD`, `POST`.
    pub method: String,
    /// With what follows a `?`.
    pub path: String,
    /// Names in small letters.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Asked {
    /// The value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }
}

/// What is answered.
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(&'static str, String)>,
    pub body: Vec<u8>,
    /// Bytes of the body that are sent before the connection breaks.
    pub breaks_after: Option<usize>,
}

impl Answer {
    pub fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self {
            status,
            headers: Vec::new(),
            body: body.into(),
            breaks_after: None,
        }
    }

    pub fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }
}

/// Listens until the test process ends.
pub fn listen(answer: impl Fn(&Asked) -> Answer + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let answer = Arc::new(answer);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (Ok(mut stream), answer) = (stream, Arc::clone(&answer)) else {
                return;
            };
            std::thread::spawn(move || {
                let mut reader = BufReader::new(stream.try_clone().expect("a stream"));
                let Some(asked) = read(&mut reader) else {
                    return;
                };
                let answer = answer(&asked);
                let mut head = format!(
                    "HTTP/1.1 {} X\r\ncontent-length: {}\r\nconnection: close\r\n",
                    answer.status,
                    answer.body.len()
                );
                for (name, value) in &answer.headers {
                    head += &format!("{name}: {value}\r\n");
                }
                let end = answer.breaks_after.unwrap_or(answer.body.len());
                let _ = stream.write_all(format!("{head}\r\n").as_bytes());
                if asked.method != "HEAD" {
                    let _ = stream.write_all(&answer.body[..end]);
                }
            });
        }
    });
    address
}

/// Reads a request.
fn read(reader: &mut impl BufRead) -> Option<Asked> {
    let mut first = String::new();
    reader.read_line(&mut first).ok()?;
    let mut words = first.split(' ').map(str::to_owned);
    let (method, path) = (words.next()?, words.next()?);
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(':') else {
            break;
        };
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let mut asked = Asked {
        method,
        path,
        headers,
        body: Vec::new(),
    };
    let length = asked.header("content-length").and_then(|n| n.parse().ok());
    asked.body.resize(length.unwrap_or(0), 0);
    reader.read_exact(&mut asked.body).ok()?;
    Some(asked)
}
