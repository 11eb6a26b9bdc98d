//! Server-sent events, read as they come. Only what model providers use: `event` and `data`.

use std::ops::Range;

/// The longest event taken, in bytes.
const EVENT_MAX: usize = 16 << 20;
/// How much is kept of what is no event stream, in bytes.
const FOREIGN_MAX: usize = 512;

/// Takes bytes, gives events. Nothing is copied but the bytes themselves, once.
#[derive(Debug, Default)]
pub(crate) struct SseParser {
    buffer: Vec<u8>,
    /// Where the first line not yet read starts.
    line: usize,
    /// How far the search for that line's end has come.
    searched: usize,
    /// The data of the event being read, if it came in one line.
    data: Option<Range<usize>>,
    /// The data of an event of several lines.
    joined: Option<Vec<u8>>,
    /// The last such event, given out.
    taken: Vec<u8>,
    is_error: bool,
    any_field: bool,
    /// The first lines that are of no event stream, cut.
    foreign: Vec<u8>,
}

/// One event.
#[derive(Debug, PartialEq)]
pub(crate) struct SseEvent<'a> {
    /// Its data.
    pub(crate) data: &'a [u8],
    /// Its type is `error`.
    pub(crate) is_error: bool,
}

/// An event is longer than 16 MiB.
#[derive(Debug, PartialEq)]
pub(crate) struct EventTooLong;

impl SseParser {
    /// Adds bytes. All events that are complete must have been taken.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<(), EventTooLong> {
        let keep_from = self.data.as_ref().map_or(self.line, |data| data.start);
        if keep_from > 0 {
            self.buffer.drain(..keep_from);
            self.line -= keep_from;
            self.searched -= keep_from;
            if let Some(data) = &mut self.data {
                *data = data.start - keep_from..data.end - keep_from;
            }
        }
        if self.buffer.len() + self.joined.as_ref().map_or(0, Vec::len) + bytes.len() > EVENT_MAX {
            return Err(EventTooLong);
        }
        self.buffer.extend_from_slice(bytes);
        Ok(())
    }

    /// Whether a field of an event was ever read: if not, what came was no event stream.
    pub(crate) fn saw_fields(&self) -> bool {
        self.any_field
    }

    /// The start of what came, if it was no event stream.
    pub(crate) fn unread(&self) -> &[u8] {
        &self.foreign
    }

    /// The next complete event with data.
    pub(crate) fn next(&mut self) -> Option<SseEvent<'_>> {
        loop {
            let Some(length) = self.buffer[self.searched..].iter().position(|byte| *byte == b'\n') else {
                self.searched = self.buffer.len();
                return None;
            };
            let end = self.searched + length;
            let start = std::mem::replace(&mut self.line, end + 1);
            self.searched = end + 1;
            let end = if end > start && self.buffer[end - 1] == b'\r' { end - 1 } else { end };
            if start < end {
                self.field(start..end);
            } else if self.data.is_some() || self.joined.is_some() {
                return Some(self.take());
            } else {
                self.is_error = false;
            }
        }
    }

    /// At the end of the stream: the event that no empty line has closed. Sloppy servers end so.
    pub(crate) fn last(&mut self) -> Option<SseEvent<'_>> {
        if self.line < self.buffer.len() {
            let (start, end) = (self.line, self.buffer.len());
            self.line = end;
            self.searched = end;
            self.field(start..end);
        }
        (self.data.is_some() || self.joined.is_some()).then(|| self.take())
    }

    fn take(&mut self) -> SseEvent<'_> {
        let is_error = std::mem::take(&mut self.is_error);
        let range = self.data.take().unwrap_or_default();
        if let Some(joined) = self.joined.take() {
            self.taken = joined;
            return SseEvent { data: &self.taken, is_error };
        }
        SseEvent { data: &self.buffer[range], is_error }
    }

    fn field(&mut self, line: Range<usize>) {
        let bytes = &self.buffer[line.clone()];
        let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
        let Some(name) = [&b"data"[..], b"event", b"id", b"retry", b""]
            .into_iter()
            .find(|name| bytes.strip_prefix(*name).is_some_and(|rest| rest.is_empty() || rest[0] == b':'))
        else {
            let room = FOREIGN_MAX.saturating_sub(self.foreign.len()).min(bytes.len());
            self.foreign.extend_from_slice(&bytes[..room]);
            return;
        };
        self.any_field = true;
        let value = bytes.get(name.len() + 1..).unwrap_or_default();
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match name {
            b"event" => self.is_error = value == b"error",
            b"data" => {
                let range = line.end - value.len()..line.end;
                if let Some(joined) = &mut self.joined {
                    joined.push(b'\n');
                    joined.extend_from_slice(value);
                } else if let Some(first) = self.data.take() {
                    let mut joined = self.buffer[first].to_vec();
                    joined.push(b'\n');
                    joined.extend_from_slice(&self.buffer[range]);
                    self.joined = Some(joined);
                } else {
                    self.data = Some(range);
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(pieces: &[&[u8]]) -> Vec<(String, bool)> {
        let mut parser = SseParser::default();
        let mut events = Vec::new();
        for piece in pieces {
            parser.push(piece).unwrap();
            while let Some(event) = parser.next() {
                events.push((String::from_utf8(event.data.to_vec()).unwrap(), event.is_error));
            }
        }
        if let Some(event) = parser.last() {
            events.push((String::from_utf8(event.data.to_vec()).unwrap(), event.is_error));
        }
        events
    }

    #[test]
    fn events_are_the_same_however_the_bytes_are_cut() {
        let stream = "\u{feff}data: one\n\n: comment\r\n\r\ndata:two\r\n\r\nevent: error\nid: 7\ndata: a\ndata: b\ndata:\n\nevent: x\n\ndata: æ";
        let expected: Vec<(String, bool)> =
            [("one", false), ("two", false), ("a\nb\n", true), ("æ", false)].map(|(s, e)| (s.to_owned(), e)).into();
        assert_eq!(events(&[stream.as_bytes()]), expected);
        for size in 1..7 {
            assert_eq!(events(&stream.as_bytes().chunks(size).collect::<Vec<_>>()), expected, "cut at {size}");
        }
    }

    #[test]
    fn what_is_no_event_stream_has_no_fields() {
        let mut parser = SseParser::default();
        parser.push(b"<html>\nno: data\n").unwrap();
        assert_eq!(parser.next(), None);
        assert!(!parser.saw_fields());
        parser.push(b": a comment\n").unwrap();
        assert_eq!(parser.next(), None);
        assert!(parser.saw_fields());
    }

    #[test]
    fn an_endless_event_is_refused() {
        let mut parser = SseParser::default();
        let piece = vec![b'x'; 1 << 20];
        let refused = (0..20).find(|_| {
            let pushed = parser.push(&piece);
            assert_eq!(parser.next(), None);
            pushed.is_err()
        });
        assert_eq!(refused, Some(16));
    }
}
