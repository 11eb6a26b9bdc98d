//! Server-sent events, as bytes come: frames, comments, ids.

use bytes::{Buf, BytesMut};

/// The longest frame that is kept. A chunk holds a tool's whole result, so this is generous.
const FRAME_LEN_MAX: usize = 64 * 1024 * 1024;

/// One frame of an event stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Frame {
    /// `: text`.
    Comment(String),
    /// Data, with what came along.
    Event {
        /// `id:`.
        id: Option<String>,
        /// `event:`, empty if there is none.
        event: String,
        /// `data:`, joined by newlines.
        data: String,
    },
}

/// A frame is longer than [`FRAME_LEN_MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TooLong;

/// Cuts a byte stream into frames. Lines may end in LF or CRLF.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    buffer: BytesMut,
    /// No line end lies before this place.
    searched: usize,
    id: Option<String>,
    event: String,
    data: Option<String>,
}

impl Frames {
    /// Adds what has come.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Result<(), TooLong> {
        self.buffer.extend_from_slice(bytes);
        let held = self.data.as_ref().map_or(0, String::len);
        if self.buffer.len().saturating_add(held) > FRAME_LEN_MAX { Err(TooLong) } else { Ok(()) }
    }

    /// The next whole frame.
    pub(crate) fn next(&mut self) -> Option<Frame> {
        loop {
            let found = self.buffer[self.searched..].iter().position(|byte| *byte == b'\n');
            let Some(end) = found.map(|at| self.searched + at) else {
                self.searched = self.buffer.len();
                return None;
            };
            let line = self.buffer.split_to(end);
            self.buffer.advance(1);
            self.searched = 0;
            let line = line.strip_suffix(b"\r").unwrap_or(&line);
            let line = String::from_utf8_lossy(line);
            if line.is_empty() {
                let (id, event) = (self.id.take(), std::mem::take(&mut self.event));
                if let Some(data) = self.data.take() {
                    return Some(Frame::Event { id, event, data });
                }
                continue;
            }
            if let Some(comment) = line.strip_prefix(':') {
                return Some(Frame::Comment(comment.trim_start().to_owned()));
            }
            let (field, value) = line.split_once(':').unwrap_or((&line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "data" => match &mut self.data {
                    Some(data) => {
                        data.push('\n');
                        data.push_str(value);
                    }
                    None => self.data = Some(value.to_owned()),
                },
                "id" => self.id = Some(value.to_owned()),
                "event" => value.clone_into(&mut self.event),
                // `retry` and what may come.
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(id: Option<&str>, event: &str, data: &str) -> Frame {
        Frame::Event { id: id.map(str::to_owned), event: event.into(), data: data.into() }
    }

    #[test]
    fn http_021_frames_are_the_same_however_the_bytes_are_cut() {
        let stream =
            ": connected\n\nid: 1-2\ndata: {\"a\":\"é\"}\n\nevent: gap\r\ndata: {}\r\n\r\nretry: 5\n\ndata: [DONE]\n\n";
        let expected = vec![
            Frame::Comment("connected".into()),
            event(Some("1-2"), "", "{\"a\":\"é\"}"),
            event(None, "gap", "{}"),
            event(None, "", "[DONE]"),
        ];
        for size in 1..=stream.len() {
            let mut frames = Frames::default();
            let mut seen = Vec::new();
            for piece in stream.as_bytes().chunks(size) {
                frames.feed(piece).unwrap();
                while let Some(frame) = frames.next() {
                    seen.push(frame);
                }
            }
            assert_eq!(seen, expected, "cut at {size}");
        }
    }

    #[test]
    fn a_frame_without_end_is_given_up() {
        let mut frames = Frames::default();
        let piece = vec![b'x'; 8 * 1024 * 1024];
        let mut fed = 0;
        while frames.feed(&piece).is_ok() {
            assert!(frames.next().is_none());
            fed += 1;
            assert!(fed <= 8);
        }
        assert_eq!(fed, 8);
    }
}
