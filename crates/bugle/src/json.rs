//! JSON shorthands.

use std::borrow::Cow;

pub use serde_json::{Value, json};

/// A JSON object that keeps the order of its keys.
pub type Object = serde_json::Map<String, Value>;

/// `true` for the default: what serde leaves out when it writes.
pub(crate) fn is_false(value: &bool) -> bool {
    !*value
}

/// JSON text in which every escape of half a surrogate pair is `\\ufffd`; whole pairs stay. JavaScript writes such
/// halves, and no parser that gives Rust strings takes them (R39a). Borrowed if there is nothing to change.
pub fn without_lone_surrogates(text: &str) -> Cow<'_, str> {
    let bytes = text.as_bytes();
    // The unit of the `\uXXXX` escape at `at`.
    let unit = |at: usize| -> Option<u16> {
        let escape = bytes.get(at..at + 6)?;
        let digits = escape.strip_prefix(b"\\u")?;
        if !digits.iter().all(u8::is_ascii_hexdigit) {
            return None;
        }
        u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
    };
    let mut out = String::new();
    let (mut at, mut copied) = (0, 0);
    while at < bytes.len() {
        if bytes[at] != b'\\' {
            at += 1;
            continue;
        }
        match unit(at) {
            Some(0xd800..=0xdbff) if matches!(unit(at + 6), Some(0xdc00..=0xdfff)) => at += 12,
            Some(0xd800..=0xdfff) => {
                out.push_str(&text[copied..at]);
                out.push_str("\\ufffd");
                at += 6;
                copied = at;
            }
            // Whatever is escaped is no backslash that starts an escape.
            _ => at += 2,
        }
    }
    if copied == 0 {
        return Cow::Borrowed(text);
    }
    out.push_str(&text[copied..]);
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r39a_only_halves_of_surrogate_pairs_are_replaced() {
        for (text, expected) in [
            (r#""a\ud83dc""#, r#""a\ufffdc""#),
            (r#""\ude00\ud83d""#, r#""\ufffd\ufffd""#),
            (r#""\ud83d\ud83d\ude00""#, r#""\ufffd\ud83d\ude00""#),
            (r#""\ud83d\ude00""#, r#""\ud83d\ude00""#),
            (r#""\\ud83d""#, r#""\\ud83d""#),
            (r#""\ud8""#, r#""\ud8""#),
            ("\"æ\\", "\"æ\\"),
        ] {
            assert_eq!(without_lone_surrogates(text), expected, "{text}");
        }
    }
}
