//! Cron expressions, as far as a poll needs them: how often they fire (NOTIF-070, NOTIF-074).

use std::{collections::BTreeSet, fmt, str::FromStr, time::Duration};

/// A cadence in cron's words: minute, hour, day of the month, month, day of the week; with a field for seconds before
/// them if there are six. A field is `*`, a number, a name (`JAN`, `MON`), a range `1-5`, a step `*/15` or `10-40/5`, or
/// a list of these. `@hourly`, `@daily`, `@midnight`, `@weekly`, `@monthly`, `@yearly` and `@annually` are known too.
///
/// Nothing is started at the times it names. What counts is the shortest time between two of them, see [`Self::interval`].
///
/// ```
/// use std::time::Duration;
/// use bugle::notification::Cron;
/// assert_eq!("*/5 * * * *".parse::<Cron>()?.interval(), Duration::from_secs(300));
/// let wrong = "0 25 * * *".parse::<Cron>().unwrap_err();
/// assert_eq!(wrong.to_string(), "hour: 25 is not from 0 to 23");
/// # Ok::<(), bugle::notification::CronError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cron {
    text: String,
    interval: Duration,
}

/// What is wrong with a cron expression, and in which of its fields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CronError {
    /// `minute`, `hour`, …; `None`: the whole of it.
    pub field: Option<&'static str>,
    /// For people.
    pub reason: String,
}

impl fmt::Display for CronError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.field {
            Some(field) => write!(f, "{field}: {}", self.reason),
            None => f.write_str(&self.reason),
        }
    }
}

impl std::error::Error for CronError {}

const DAY: u32 = 86_400;

/// A field: its name, its least and its greatest value, and names for its values, the first of which is the least.
struct Field(&'static str, u32, u32, &'static [&'static str]);

const FIELDS: [Field; 6] = [
    Field("second", 0, 59, &[]),
    Field("minute", 0, 59, &[]),
    Field("hour", 0, 23, &[]),
    Field("day of the month", 1, 31, &[]),
    Field("month", 1, 12, &["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"]),
    // 7 is Sunday too.
    Field("day of the week", 0, 7, &["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"]),
];

impl Cron {
    /// The shortest time between two of its moments, at most a day: so often may something be looked for.
    pub fn interval(&self) -> Duration {
        self.interval
    }
}

impl fmt::Display for Cron {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Cron {
    type Err = CronError;

    fn from_str(text: &str) -> Result<Self, CronError> {
        let text = text.trim();
        let whole = |reason: String| CronError { field: None, reason };
        let spelled = match text.strip_prefix('@') {
            None => text,
            Some("hourly") => "0 * * * *",
            Some("daily" | "midnight" | "weekly" | "monthly" | "yearly" | "annually") => "0 0 * * *",
            Some(_) => {
                let known = "@hourly, @daily, @midnight, @weekly, @monthly, @yearly and @annually";
                return Err(whole(format!("{text} is unknown; known are {known}")));
            }
        };
        let words: Vec<&str> = spelled.split_whitespace().collect();
        let missing = match words.len() {
            5 => 1,
            6 => 0,
            count => {
                let reason = format!("{text:?} has {count} fields; write five, such as \"*/1 * * * *\", or six");
                return Err(whole(reason));
            }
        };
        let mut values = vec![BTreeSet::from([0]); missing];
        for (word, field) in words.iter().zip(&FIELDS[missing..]) {
            values.push(field.read(word).map_err(|reason| CronError { field: Some(field.0), reason })?);
        }
        Ok(Self {
            text: text.to_owned(),
            interval: Duration::from_secs(shortest(&values[0], &values[1], &values[2]).into()),
        })
    }
}

/// The shortest time between two moments of a day, the last one to the first of the next day included.
fn shortest(seconds: &BTreeSet<u32>, minutes: &BTreeSet<u32>, hours: &BTreeSet<u32>) -> u32 {
    let moments = hours.iter().flat_map(|hour| {
        minutes.iter().flat_map(move |minute| seconds.iter().map(move |second| (hour * 60 + minute) * 60 + second))
    });
    let moments: Vec<u32> = moments.collect();
    let (Some(first), Some(last)) = (moments.first(), moments.last()) else { return DAY };
    let over_night = first + DAY - last;
    moments.windows(2).map(|pair| pair[1] - pair[0]).chain([over_night]).min().unwrap_or(DAY)
}

impl Field {
    fn read(&self, word: &str) -> Result<BTreeSet<u32>, String> {
        let &Self(_, least, greatest, _) = self;
        let mut values = BTreeSet::new();
        for part in word.split(',') {
            let (range, step) = match part.split_once('/') {
                None => (part, None),
                Some((range, step)) => match step.parse::<u32>() {
                    Ok(step) if step > 0 => (range, Some(step)),
                    _ => return Err(format!("{step:?} is no step; it must be a number from 1")),
                },
            };
            let (from, to) = match range.split_once('-') {
                _ if range == "*" => (least, greatest),
                Some((from, to)) => (self.value(from)?, self.value(to)?),
                // `5/10`: from 5 on.
                None if step.is_some() => (self.value(range)?, greatest),
                None => (self.value(range)?, self.value(range)?),
            };
            if from > to {
                return Err(format!("{range} begins after its end"));
            }
            values.extend((from..=to).step_by(step.unwrap_or(1) as usize));
        }
        Ok(values)
    }

    fn value(&self, word: &str) -> Result<u32, String> {
        let &Self(_, least, greatest, names) = self;
        if let Some(at) = names.iter().position(|name| name.eq_ignore_ascii_case(word)) {
            return Ok(least + u32::try_from(at).unwrap_or_default());
        }
        match word.parse::<u32>() {
            Ok(value) if (least..=greatest).contains(&value) => Ok(value),
            Ok(value) => Err(format!("{value} is not from {least} to {greatest}")),
            Err(_) if word.is_empty() => Err("a value is missing".to_owned()),
            Err(_) => Err(format!("{word:?} is no value of it")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notif_070_a_cron_expression_says_how_often() {
        for (text, seconds) in [
            ("*/1 * * * *", 60),
            ("* * * * *", 60),
            ("*/15 * * * *", 900),
            ("*/7 * * * *", 240),
            ("0 * * * *", 3600),
            ("5,10,40 8-18/2 * * MON-FRI", 300),
            ("0 9 * JAN,jul 1", 86_400),
            ("30 23,1 * * 7", 7200),
            ("*/10 * * * * *", 10),
            ("5/20 * * * *", 1200),
            ("@hourly", 3600),
            (" @weekly ", 86_400),
        ] {
            assert_eq!(text.parse::<Cron>().unwrap().interval().as_secs(), seconds, "{text}");
        }
    }

    #[test]
    fn notif_070_what_is_wrong_is_named_with_its_field() {
        for (text, said) in [
            ("61 * * * *", "minute: 61 is not from 0 to 59"),
            ("* * 0 * *", "day of the month: 0 is not from 1 to 31"),
            ("* * * FOO *", "month: \"FOO\" is no value of it"),
            ("* * * * 5-1", "day of the week: 5-1 begins after its end"),
            ("*/0 * * * *", "minute: \"0\" is no step; it must be a number from 1"),
            ("60 * * * * *", "second: 60 is not from 0 to 59"),
            ("1, * * * *", "minute: a value is missing"),
            ("* * *", "\"* * *\" has 3 fields; write five, such as \"*/1 * * * *\", or six"),
            ("", "\"\" has 0 fields; write five, such as \"*/1 * * * *\", or six"),
        ] {
            assert_eq!(text.parse::<Cron>().unwrap_err().to_string(), said, "{text}");
        }
        assert!("@never".parse::<Cron>().unwrap_err().to_string().starts_with("@never is unknown; known are @hourly"));
    }
}
