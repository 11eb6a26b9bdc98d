//! How much a notification may say, since it stands whole in prompts (NOTIF-006): what a caller gives is checked, what
//! comes from outside, whose sender nobody can ask, is made to fit.

use std::fmt::Write as _;

use serde_json::Value;
use sha2::{Digest, Sha256};

use super::NewNotification;
use crate::{
    error::Error,
    signal::validate_attributes,
    storage::{NOTIFICATION_PRIORITIES, notifications::rules::ATTRIBUTES_MAX},
};

/// Payload and metadata of one record, at most, as JSON text.
pub(crate) const PAYLOAD_MAX: usize = 256 * 1024;
/// Bytes of a source, a kind, a source's own id.
const NAME_MAX: usize = 256;
const KEY_MAX: usize = 1024;
const SUMMARY_MAX: usize = 16 * 1024;
/// Bytes of an attribute, its name included.
const ATTRIBUTE_MAX: usize = 1024;
/// Stands where a text was cut.
const CUT: &str = "… [cut]";

pub(super) fn validate(input: &NewNotification) -> Result<(), Error> {
    let wrong = |field: &str, message: String| Err(Error::invalid(field, format!("notification_invalid: {message}")));
    for (field, text) in [("source", &input.source), ("kind", &input.kind), ("summary", &input.summary)] {
        if text.trim().is_empty() {
            return wrong(field, format!("{field} must not be empty"));
        }
    }
    for (field, text, max) in [
        ("source", Some(&input.source), NAME_MAX),
        ("kind", Some(&input.kind), NAME_MAX),
        ("summary", Some(&input.summary), SUMMARY_MAX),
        ("sourceId", input.source_id.as_ref(), NAME_MAX),
        ("dedupeKey", input.dedupe_key.as_ref(), KEY_MAX),
        ("coalesceKey", input.coalesce_key.as_ref(), KEY_MAX),
    ] {
        if let Some(bytes) = text.map(String::len).filter(|bytes| *bytes > max) {
            return wrong(field, format!("{field} has {bytes} bytes; at most {max} are possible"));
        }
    }
    if let Some(priority) = &input.priority
        && !NOTIFICATION_PRIORITIES.contains(&priority.as_str())
    {
        let mut shown = priority.clone();
        cut(&mut shown, NAME_MAX);
        return wrong("priority", format!("priority is {shown}; it must be low, medium, high or urgent"));
    }
    if let Some(attributes) = &input.attributes {
        if attributes.len() > ATTRIBUTES_MAX {
            let message = format!("there are {} attributes; at most {ATTRIBUTES_MAX} are possible", attributes.len());
            return wrong("attributes", message);
        }
        if let Some((name, value)) = attributes.iter().find(|(name, value)| size(name, value) > ATTRIBUTE_MAX) {
            let mut shown = name.clone();
            cut(&mut shown, NAME_MAX);
            let bytes = size(name, value);
            let message = format!("attribute {shown} has {bytes} bytes; at most {ATTRIBUTE_MAX} are possible");
            return wrong("attributes", message);
        }
        validate_attributes(&attributes.iter().map(|(name, value)| (name.clone(), value.clone())).collect())?;
    }
    let size = input.payload.as_ref().map_or(0, |payload| payload.to_string().len())
        + input.metadata.as_ref().map_or(0, |metadata| serde_json::to_string(metadata).map_or(0, |text| text.len()));
    if size > PAYLOAD_MAX {
        return wrong("payload", format!("payload and metadata have {size} bytes; at most {PAYLOAD_MAX} are kept"));
    }
    Ok(())
}

fn size(name: &str, value: &Value) -> usize {
    name.len() + value.as_str().map_or_else(|| value.to_string().len(), str::len)
}

/// Cuts a text to at most `max` bytes, with a mark at its end.
pub(crate) fn cut(text: &mut String, max: usize) {
    if text.len() <= max {
        return;
    }
    let mut end = max.saturating_sub(CUT.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    text.push_str(CUT);
}

/// A key stands for one event, so that a long one is not cut: its hash takes its place.
fn shorten(key: &mut String) {
    if key.len() > KEY_MAX {
        let digest = Sha256::digest(key.as_bytes());
        *key = digest.iter().fold(String::from("sha256-"), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        });
    }
}

/// The notification with what is too long cut, and attributes that are too many left out. Its payload is the caller's.
pub(crate) fn fitted(mut new: NewNotification) -> NewNotification {
    cut(&mut new.source, NAME_MAX);
    cut(&mut new.kind, NAME_MAX);
    cut(&mut new.summary, SUMMARY_MAX);
    if let Some(id) = &mut new.source_id {
        cut(id, NAME_MAX);
    }
    [&mut new.dedupe_key, &mut new.coalesce_key].into_iter().flatten().for_each(shorten);
    if let Some(attributes) = &mut new.attributes {
        let mut kept = 0;
        attributes.retain(|name, value| {
            if let Value::String(text) = value
                && name.len() <= NAME_MAX
            {
                cut(text, ATTRIBUTE_MAX - name.len());
            }
            kept += 1;
            kept <= ATTRIBUTES_MAX && size(name, value) <= ATTRIBUTE_MAX
        });
    }
    new
}
