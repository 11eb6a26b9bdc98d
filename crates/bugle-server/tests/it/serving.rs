//! A server on a socket, and its end (CLI-072).

use std::time::Duration;

use bugle::json::json;
use bugle_server::serve;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tokio_util::sync::CancellationToken;

use crate::support::Server;

struct Client {
    socket: TcpStream,
    read: String,
}

impl Client {
    async fn send(address: std::net::SocketAddr, method: &str, path: &str, body: &str) -> Self {
        let mut socket = TcpStream::connect(address).await.unwrap();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        socket.write_all(request.as_bytes()).await.unwrap();
        Self { socket, read: String::new() }
    }

    /// Reads until `text` has come; `false` if the connection ends before.
    async fn until(&mut self, text: &str) -> bool {
        let mut buffer = vec![0; 4096];
        while !self.read.contains(text) {
            let count = self.socket.read(&mut buffer).await.unwrap_or(0);
            if count == 0 {
                return false;
            }
            self.read.push_str(&String::from_utf8_lossy(&buffer[..count]));
        }
        true
    }
}

#[tokio::test]
async fn cli_072_a_draining_server_refuses_input_answers_health_and_ends_streams_without_done() {
    let server = Server::new().await;
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let stop = CancellationToken::new();
    let grace = Duration::from_millis(500);
    let serving = tokio::spawn(serve(listener, server.router.clone(), server.bugle.clone(), stop.clone(), grace));

    let thread = json!({"threadId": "t", "resourceId": "r"}).to_string();
    let mut subscriber = Client::send(address, "POST", "/api/agents/plain/threads/subscribe", &thread).await;
    assert!(subscriber.until(": connected\n\n").await);
    let memory = json!({"thread": "t", "resource": "r"});
    let run = json!({"messages": "[[say one ;; hang]]", "memory": memory}).to_string();
    let mut stream = Client::send(address, "POST", "/api/agents/plain/stream", &run).await;
    assert!(stream.until("text-delta").await);

    stop.cancel();
    while !server.bugle.is_draining() {
        tokio::task::yield_now().await;
    }
    let mut health = Client::send(address, "GET", "/health", "").await;
    assert!(health.until("{\"success\":false}").await, "{}", health.read);
    assert!(health.read.starts_with("HTTP/1.1 503"));
    let input = json!({"message": "x", "threadId": "t", "resourceId": "r"}).to_string();
    let mut refused = Client::send(address, "POST", "/api/agents/plain/send-message", &input).await;
    assert!(refused.until("\"error\"").await);
    assert!(refused.read.starts_with("HTTP/1.1 503") && refused.read.to_lowercase().contains("retry-after: 1"));

    tokio::time::timeout(Duration::from_secs(20), serving).await.unwrap().unwrap().unwrap();
    assert!(!subscriber.until("[DONE]").await);
    assert!(!stream.until("[DONE]").await, "{}", stream.read);
    assert!(TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn http_007_a_client_that_is_refused_for_length_reads_the_refusal() {
    let server = Server::new().await;
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let stop = CancellationToken::new();
    let serving =
        tokio::spawn(serve(listener, server.router.clone(), server.bugle.clone(), stop.clone(), Duration::ZERO));
    let long = json!({"messages": "x".repeat(10 * 1024 * 1024)}).to_string();
    let mut client = Client::send(address, "POST", "/api/agents/plain/generate", &long).await;
    assert!(client.until("Request body too large").await);
    assert!(client.read.starts_with("HTTP/1.1 413"));
    stop.cancel();
    serving.await.unwrap().unwrap();
}
