use std::io::{BufRead as _, BufReader, Read as _, Result, Write as _};
use std::net::{TcpListener, TcpStream};

/// A request to [`serve_http`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpRequest {
    /// The request line and the headers.
    pub head: Vec<String>,
    pub body: Vec<u8>,
}

/// Serves plain HTTP on loopback, one request per connection, and returns the origin (`http://127.0.0.1:PORT`).
///
/// `answer` returns the status and the body. The server ends with the process of the test.
pub fn serve_http(mut answer: impl FnMut(HttpRequest) -> (u16, String) + Send + 'static) -> Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let origin = format!("http://{}", listener.local_addr()?);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // The client reports a broken connection.
            let _ = serve_one(stream, &mut answer);
        }
    });
    Ok(origin)
}

fn serve_one(stream: TcpStream, answer: &mut impl FnMut(HttpRequest) -> (u16, String)) -> Result<()> {
    let mut stream = BufReader::new(stream);
    let head = stream.by_ref().lines();
    let head = head.take_while(|line| line.as_ref().is_ok_and(|line| !line.is_empty()));
    let mut request = HttpRequest { head: head.collect::<Result<_>>()?, body: Vec::new() };
    let length = request.header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    stream.by_ref().take(length).read_to_end(&mut request.body)?;
    let (status, body) = answer(request);
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status} x\r\ncontent-type: application/json\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n"
    );
    stream.get_mut().write_all((head + &body).as_bytes())
}

// === impl HttpRequest ===

impl HttpRequest {
    pub fn line(&self) -> &str {
        self.head.first().map(String::as_str).unwrap_or_default()
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.head.iter().skip(1).filter_map(|line| line.split_once(':'));
        headers.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
    }
}
