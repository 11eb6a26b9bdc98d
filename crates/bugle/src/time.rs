//! Instants as the wire and the stores write them, and the clock they come from.

use std::{fmt, sync::Arc, time::Duration};

use chrono::{DateTime, SecondsFormat, Utc};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A moment in UTC, to the millisecond. Its JSON form is `2026-01-01T00:00:00.000Z` (HTTP-009).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(i64);

impl Timestamp {
    /// The last moment that every store and client can read: the end of the year 9999.
    pub const MAX: Self = Self(253_402_300_799_999);
    /// The first one: the begin of the year 1.
    pub const MIN: Self = Self(-62_135_596_800_000);

    /// From milliseconds since 1970, cut to [`Self::MIN`] and [`Self::MAX`].
    pub const fn from_millis(millis: i64) -> Self {
        if millis > Self::MAX.0 {
            Self::MAX
        } else if millis < Self::MIN.0 {
            Self::MIN
        } else {
            Self(millis)
        }
    }

    /// Milliseconds since 1970.
    pub const fn as_millis(self) -> i64 {
        self.0
    }

    /// This moment by the system's clock.
    pub fn now() -> Self {
        Self(Utc::now().timestamp_millis())
    }

    /// `duration` later, saturating.
    pub fn plus(self, duration: Duration) -> Self {
        Self::from_millis(self.0.saturating_add(i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)))
    }

    /// Reads ISO 8601 with any number of fraction digits and any offset.
    pub fn parse(text: &str) -> Option<Self> {
        DateTime::parse_from_rfc3339(text).ok().map(|at| Self::from_millis(at.timestamp_millis()))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = DateTime::<Utc>::from_timestamp_millis(self.0).unwrap_or_default();
        f.write_str(&at.to_rfc3339_opts(SecondsFormat::Millis, true))
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Timestamp;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an ISO 8601 date and time")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Timestamp, E> {
                Timestamp::parse(text).ok_or_else(|| E::custom(format!("not an ISO 8601 date and time: {text}")))
            }
            fn visit_i64<E: de::Error>(self, millis: i64) -> Result<Timestamp, E> {
                Ok(Timestamp::from_millis(millis))
            }
            fn visit_u64<E: de::Error>(self, millis: u64) -> Result<Timestamp, E> {
                Ok(Timestamp::from_millis(i64::try_from(millis).unwrap_or(i64::MAX)))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

/// Where the runtime reads the time of day. Waiting goes through tokio's timers, so tests pause those.
pub trait Clock: fmt::Debug + Send + Sync {
    /// This moment.
    fn now(&self) -> Timestamp;
}

/// The system's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }
}

/// A clock that follows tokio's timers from a fixed start: what tests with paused time use.
#[derive(Debug, Clone, Copy)]
pub struct TimerClock {
    start: Timestamp,
    origin: tokio::time::Instant,
}

impl TimerClock {
    /// Starts at `start`. Must be called inside a tokio runtime.
    pub fn starting_at(start: Timestamp) -> Self {
        Self { start, origin: tokio::time::Instant::now() }
    }
}

impl Clock for TimerClock {
    fn now(&self) -> Timestamp {
        self.start.plus(self.origin.elapsed())
    }
}

/// A shared clock.
pub type SharedClock = Arc<dyn Clock>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn http_009_times_are_iso_8601_with_milliseconds() {
        let at = Timestamp::from_millis(1_767_225_600_000);
        assert_eq!(serde_json::to_string(&at).unwrap(), "\"2026-01-01T00:00:00.000Z\"");
        assert_eq!(Timestamp::parse("2026-01-01T01:00:00+01:00"), Some(at));
        assert_eq!(Timestamp::parse("yesterday"), None);
        // A later moment than any store can read does not exist.
        assert_eq!(Timestamp::from_millis(i64::MAX).to_string(), "9999-12-31T23:59:59.999Z");
        assert_eq!(Timestamp::MAX.plus(Duration::from_millis(1)), Timestamp::MAX);
    }
}
