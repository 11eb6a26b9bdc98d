//! Columns to values and back (STO §2.1). A value that cannot be read never fails a listing (STO-012, ruling 40).

use std::{
    collections::HashSet,
    sync::{LazyLock, Mutex, PoisonError},
};

use bugle::{
    json::Object,
    message::{MessageContent, Role, StoredMessage, Thread},
    time::Timestamp,
};
use rusqlite::{Row, types::ValueRef};
use serde::de::DeserializeOwned;

/// Rows named in the log so far; at most so many.
const NAMED_MAX: usize = 1000;

/// Names a row that cannot be read, once.
pub(super) fn report(table: &str, id: &str, column: &str) {
    static NAMED: LazyLock<Mutex<HashSet<String>>> = LazyLock::new(Mutex::default);
    let mut named = NAMED.lock().unwrap_or_else(PoisonError::into_inner);
    if named.len() < NAMED_MAX && named.insert(format!("{table}\0{id}\0{column}")) {
        tracing::warn!(table, id, column, "a stored value cannot be read and is left out");
    }
}

/// A column as text: what is not UTF-8 becomes U+FFFD, a number its digits, null `None`.
pub(super) fn text(row: &Row<'_>, index: usize) -> rusqlite::Result<Option<String>> {
    Ok(match row.get_ref(index)? {
        ValueRef::Null => None,
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        ValueRef::Integer(number) => Some(number.to_string()),
        ValueRef::Real(number) => Some(number.to_string()),
    })
}

/// A JSON column of a SELECT: decoded text, null, or an empty blob where it is neither JSON text nor JSONB (STO-011).
pub(super) fn json_column(column: &str) -> String {
    format!("CASE WHEN {column} IS NULL THEN NULL WHEN json_valid({column}, 10) THEN json({column}) ELSE x'' END")
}

/// Reads a [`json_column`]. What does not parse is reported and read as null (STO-012).
pub(super) fn json<T: DeserializeOwned>(
    row: &Row<'_>,
    index: usize,
    (table, id, column): (&str, &str, &str),
) -> rusqlite::Result<Option<T>> {
    let ValueRef::Text(bytes) = row.get_ref(index)? else {
        if row.get_ref(index)? != ValueRef::Null {
            report(table, id, column);
        }
        return Ok(None);
    };
    let text = String::from_utf8_lossy(bytes);
    let value = parse_json::<Option<T>>(&text);
    if value.is_none() {
        report(table, id, column);
    }
    Ok(value.flatten())
}

/// Parses JSON; halves of surrogate pairs, which JavaScript may store, become U+FFFD.
pub(super) fn parse_json<T: DeserializeOwned>(text: &str) -> Option<T> {
    serde_json::from_str(text).ok().or_else(|| serde_json::from_str(&repair_surrogates(text)?).ok())
}

/// Replaces `\uD800` … `\uDFFF` escapes without a partner. `None` if there are none.
fn repair_surrogates(text: &str) -> Option<String> {
    let unit = |at: usize| -> Option<u16> {
        let escape = text.get(at..at + 6)?;
        u16::from_str_radix(escape.strip_prefix("\\u")?, 16).ok()
    };
    let bytes = text.as_bytes();
    let (mut repaired, mut copied, mut at) = (String::new(), 0, 0);
    while at < bytes.len() {
        if bytes[at] != b'\\' {
            at += 1;
            continue;
        }
        match unit(at) {
            Some(0xd800..=0xdbff) if unit(at + 6).is_some_and(|low| (0xdc00..=0xdfff).contains(&low)) => at += 12,
            Some(0xd800..=0xdfff) => {
                repaired.push_str(&text[copied..at]);
                repaired.push_str("\\ufffd");
                at += 6;
                copied = at;
            }
            // Another escape: skip the escaped character too.
            _ => at += 2,
        }
    }
    (copied > 0).then(|| repaired + &text[copied..])
}

/// A time column; also without zone, which then is UTC.
pub(super) fn timestamp(row: &Row<'_>, index: usize) -> rusqlite::Result<Option<Timestamp>> {
    Ok(text(row, index)?.and_then(|text| parse_timestamp(&text)))
}

fn parse_timestamp(text: &str) -> Option<Timestamp> {
    Timestamp::parse(text).or_else(|| Timestamp::parse(&format!("{text}Z")))
}

/// The columns [`thread`] reads.
pub(super) static THREAD_COLUMNS: LazyLock<String> =
    LazyLock::new(|| format!(r#"id, "resourceId", title, {}, "createdAt", "updatedAt""#, json_column("metadata")));

/// Reads a thread; `None` if the row has no usable times or ids.
pub(super) fn thread(row: &Row<'_>) -> rusqlite::Result<Option<Thread>> {
    let id = text(row, 0)?.unwrap_or_default();
    let metadata: Option<Object> = json(row, 3, ("mastra_threads", &id, "metadata"))?;
    let (Some(created_at), Some(updated_at)) = (timestamp(row, 4)?, timestamp(row, 5)?) else {
        report("mastra_threads", &id, "createdAt");
        return Ok(None);
    };
    let (resource_id, title) = (text(row, 1)?.unwrap_or_default(), text(row, 2)?.unwrap_or_default());
    Ok(Some(Thread { id, resource_id, title, metadata, created_at, updated_at }))
}

/// The columns [`message`] reads.
pub(super) const MESSAGE_COLUMNS: &str = r#"id, thread_id, content, role, type, "createdAt", "resourceId""#;

/// Reads a message; `None` if the row has no usable time or role.
pub(super) fn message(row: &Row<'_>) -> rusqlite::Result<Option<StoredMessage>> {
    let id = text(row, 0)?.unwrap_or_default();
    let Some(role) = text(row, 3)?.and_then(|role| parse_role(&role)) else {
        report("mastra_messages", &id, "role");
        return Ok(None);
    };
    let Some(created_at) = timestamp(row, 5)? else {
        report("mastra_messages", &id, "createdAt");
        return Ok(None);
    };
    let content = parse_content(&text(row, 2)?.unwrap_or_default());
    Ok(Some(StoredMessage {
        id: id.into(),
        role,
        created_at,
        thread_id: text(row, 1)?,
        resource_id: text(row, 6)?,
        kind: text(row, 4)?,
        content,
    }))
}

fn parse_content(stored: &str) -> MessageContent {
    match serde_json::from_str(stored) {
        Ok(content) => content,
        Err(_) => MessageContent::from_stored(repair_surrogates(stored).as_deref().unwrap_or(stored)),
    }
}

/// The stored name of a role.
pub(super) const fn role_name(role: Role) -> &'static str {
    match role {
        Role::User => "user",
        Role::Assistant => "assistant",
        Role::System => "system",
        Role::Signal => "signal",
    }
}

fn parse_role(name: &str) -> Option<Role> {
    [Role::User, Role::Assistant, Role::System, Role::Signal].into_iter().find(|role| role_name(*role) == name)
}

/// A metadata object as text for `jsonb(?)`.
pub(super) fn object_text(object: Option<&Object>) -> Option<String> {
    object.map(|object| serde_json::to_string(object).unwrap_or_else(|_| "{}".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r39_halves_of_surrogate_pairs_become_the_replacement_character() {
        let read = |text: &str| parse_json::<String>(text);
        assert_eq!(read(r#""a\u0000b\ud83dc end""#).as_deref(), Some("a\0b\u{fffd}c end"));
        assert_eq!(read(r#""\ud83d\ude00""#).as_deref(), Some("😀"));
        assert_eq!(read(r#""\\ud83d \ude00 \ud83d\ud83d\ude00""#).as_deref(), Some("\\ud83d \u{fffd} \u{fffd}😀"));
        assert_eq!(read("\"open"), None);
    }

    #[test]
    fn sto_2_1_times_are_read_with_other_fractions_and_without_a_zone() {
        let at = Some(Timestamp::from_millis(1_767_225_600_000));
        assert_eq!(parse_timestamp("2026-01-01T00:00:00Z"), at);
        assert_eq!(parse_timestamp("2026-01-01T00:00:00.000000Z"), at);
        assert_eq!(parse_timestamp("2026-01-01T00:00:00"), at);
        assert_eq!(parse_timestamp("2026-01-01 00:00:00"), at);
        assert_eq!(parse_timestamp(""), None);
    }
}
