//! Values of settings: their types, their text forms, their ranges (CLI-004).

use std::{fmt, net::SocketAddr, time::Duration};

use super::table::Kind;

/// A value of a key that is no table.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Scalar {
    Text(String),
    Bool(bool),
    Int(i64),
    Ratio(f64),
    Duration(Duration),
    /// In bytes.
    Size(u64),
    List(Vec<String>),
    /// Never shown.
    Secret,
    /// A map that this version does not read; its entries.
    Map(usize),
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Bool(value) => value.fmt(f),
            Self::Int(value) => value.fmt(f),
            Self::Ratio(value) => value.fmt(f),
            Self::Duration(duration) => f.write_str(&show_duration(*duration)),
            Self::Size(bytes) => f.write_str(&show_size(*bytes)),
            Self::List(list) => write!(f, "[{}]", list.join(", ")),
            Self::Secret => f.write_str("***"),
            Self::Map(0) => f.write_str("{}"),
            Self::Map(count) => write!(f, "{{{count} entries}}"),
        }
    }
}

const UNITS: [(&str, u64); 5] = [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];
const SIZES: [(&str, u64); 4] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

/// `250ms`, `15s`, `5m`, `24h`, `7d`, or milliseconds.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let unit = if unit.is_empty() { "ms" } else { unit };
    let factor = UNITS.iter().find(|(name, _)| *name == unit).map(|(_, factor)| *factor);
    let millis = number.parse::<u64>().ok().zip(factor).and_then(|(number, factor)| number.checked_mul(factor));
    millis.map(Duration::from_millis).ok_or_else(|| {
        format!("{text:?} is no duration; write \"250ms\", \"15s\", \"5m\", \"24h\", \"7d\", or milliseconds")
    })
}

fn show_duration(duration: Duration) -> String {
    let millis = duration.as_millis();
    let unit = UNITS.iter().rev().find(|(_, factor)| millis.is_multiple_of(u128::from(*factor)) && millis > 0);
    let (name, factor) = unit.copied().unwrap_or(("ms", 1));
    format!("{}{name}", millis / u128::from(factor))
}

/// `8MiB`, `4.5MiB`, or bytes.
fn parse_size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let (number, factor) = SIZES
        .iter()
        .find_map(|(name, factor)| Some((text.strip_suffix(name)?.trim_end(), *factor)))
        .unwrap_or((text, 1));
    let whole = number.parse::<u64>().ok().and_then(|number| number.checked_mul(factor));
    let bytes = whole.or_else(|| {
        let number = number.parse::<f64>().ok().filter(|number| number.is_finite() && *number >= 0.0)?;
        let bytes = number * factor as f64;
        (factor > 1 && bytes < 9e15).then_some(bytes.round() as u64)
    });
    bytes.ok_or_else(|| format!("{text:?} is no size; write \"8MiB\", \"4.5MiB\", or bytes"))
}

fn show_size(bytes: u64) -> String {
    match SIZES.iter().find(|(_, factor)| bytes >= *factor && bytes.is_multiple_of(factor / 2)) {
        Some((name, factor)) if *factor > 1 => format!("{}{name}", bytes as f64 / *factor as f64),
        _ => bytes.to_string(),
    }
}

impl Kind {
    /// A value from text: a variable's, a flag's, or a TOML string.
    pub(crate) fn parse_text(self, text: &str) -> Result<Scalar, String> {
        let value = match self {
            Self::Text => Scalar::Text(text.to_owned()),
            Self::Address => {
                if address(text).is_none() {
                    return Err(format!("{text:?} is no address; write HOST:PORT, such as 127.0.0.1:4111"));
                }
                Scalar::Text(text.to_owned())
            }
            Self::Bool => match text {
                "true" | "1" => Scalar::Bool(true),
                "false" | "0" => Scalar::Bool(false),
                _ => return Err(format!("{text:?} is neither true nor false")),
            },
            Self::Choice(choices) => {
                if !choices.contains(&text) {
                    let near = crate::text::nearest(text, choices.iter().copied());
                    let near = near.map(|near| format!("; did you mean {near:?}?")).unwrap_or_default();
                    return Err(format!("{text:?} is not one of {}{near}", choices.join(", ")));
                }
                Scalar::Text(text.to_owned())
            }
            Self::Int { .. } => Scalar::Int(text.trim().parse().map_err(|_| format!("{text:?} is no whole number"))?),
            Self::Ratio => Scalar::Ratio(text.trim().parse().map_err(|_| format!("{text:?} is no number"))?),
            Self::Duration { .. } => Scalar::Duration(parse_duration(text)?),
            Self::Size { .. } => Scalar::Size(parse_size(text)?),
            Self::List => {
                let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
                Scalar::List(items.map(str::to_owned).collect())
            }
            Self::Cron => {
                text.parse::<bugle::notification::Cron>().map_err(|error| error.to_string())?;
                Scalar::Text(text.to_owned())
            }
            Self::Secret => Scalar::Secret,
            Self::Map => Scalar::Map(1),
        };
        self.check_range(value)
    }

    /// Refuses a value out of range.
    pub(crate) fn check_range(self, value: Scalar) -> Result<Scalar, String> {
        let fits = match (self, &value) {
            (Self::Int { min, max }, Scalar::Int(number)) => (min..=max).contains(number),
            (Self::Ratio, Scalar::Ratio(number)) => (0.0..=1.0).contains(number),
            (Self::Duration { min_ms, max_ms }, Scalar::Duration(duration)) => {
                (u128::from(min_ms)..=u128::from(max_ms)).contains(&duration.as_millis())
            }
            (Self::Size { min, max }, Scalar::Size(bytes)) => (min..=max).contains(bytes),
            _ => true,
        };
        if fits { Ok(value) } else { Err(format!("{value} is out of range; {}", self.range())) }
    }

    fn range(self) -> String {
        match self {
            Self::Int { min, max } => format!("{min} to {max} is possible"),
            Self::Ratio => "0 to 1 is possible".into(),
            Self::Duration { min_ms, max_ms } => format!(
                "{} to {} is possible",
                show_duration(Duration::from_millis(min_ms)),
                show_duration(Duration::from_millis(max_ms))
            ),
            Self::Size { min, max } => format!("{} to {} is possible", show_size(min), show_size(max)),
            _ => String::new(),
        }
    }

    /// What it is, for "must be …".
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Text | Self::Address | Self::Choice(_) => "a text",
            Self::Bool => "true or false",
            Self::Int { .. } => "a whole number",
            Self::Ratio => "a number",
            Self::Duration { .. } => "a duration such as \"15s\", or milliseconds",
            Self::Size { .. } => "a size such as \"8MiB\", or bytes",
            Self::List => "a list of texts",
            Self::Cron => "a cron expression such as \"*/1 * * * *\"",
            Self::Secret => "a secret: \"env:NAME\" or \"file:PATH\"",
            Self::Map => "a table",
        }
    }
}

/// Host and port of `HOST:PORT`, `[V6]:PORT` or `:PORT`.
pub(crate) fn address(text: &str) -> Option<(String, u16)> {
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Some((address.ip().to_string(), address.port()));
    }
    let (host, port) = text.rsplit_once(':')?;
    let host_is_plain = !host.contains([':', '/', ' ', '[', ']']);
    let host = if host.is_empty() { "0.0.0.0" } else { host };
    host_is_plain.then_some(())?;
    Some((host.to_owned(), port.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cli_004_durations_and_sizes_have_units_or_are_plain_numbers() {
        let millis = ["250ms", "15s", "5m", "24h", "7d", "1500"].map(|text| parse_duration(text).unwrap().as_millis());
        assert_eq!(millis, [250, 15_000, 300_000, 86_400_000, 604_800_000, 1500]);
        let sizes = ["8MiB", "4.5MiB", "64KiB", "1024", "2 GiB"].map(|text| parse_size(text).unwrap());
        assert_eq!(sizes, [8 << 20, 4_718_592, 65_536, 1024, 2 << 30]);
        for wrong in ["", "s", "5 s", "-1s", "1.5s", "99999999999999999999d"] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
        for wrong in ["", "MiB", "-1MiB", "1.5", "8MB"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
        let shown = ["15s", "250ms", "7d", "90m"].map(|text| show_duration(parse_duration(text).unwrap()));
        assert_eq!(shown, ["15s", "250ms", "7d", "90m"]);
        assert_eq!([show_size(4_718_592), show_size(8 << 20), show_size(1000)], ["4.5MiB", "8MiB", "1000"]);
    }

    #[test]
    fn cli_031_addresses_have_a_host_and_a_port() {
        assert_eq!(address("127.0.0.1:4111"), Some(("127.0.0.1".into(), 4111)));
        assert_eq!(address("[::1]:0"), Some(("::1".into(), 0)));
        assert_eq!(address("localhost:80"), Some(("localhost".into(), 80)));
        for wrong in ["4111", "host", "::1:80", "http://x:1", "h:99999"] {
            assert_eq!(address(wrong), None, "{wrong}");
        }
    }
}
