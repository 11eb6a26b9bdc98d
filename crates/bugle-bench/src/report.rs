//! One JSON line per measured scenario.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde_json::{Map, Value, json};

use crate::proc::Sample;

/// Durations, printed as a summary in microseconds.
pub struct Times(Histogram<u64>);

impl Default for Times {
    fn default() -> Self {
        let longest = Duration::from_secs(3600).as_nanos() as u64;
        Times(Histogram::new_with_max(longest, 3).expect("valid bounds"))
    }
}

impl Times {
    pub fn add(&mut self, time: Duration) {
        self.0.saturating_record(time.as_nanos() as u64);
    }

    pub fn p50(&self) -> Duration {
        Duration::from_nanos(self.0.value_at_quantile(0.5))
    }

    fn json(&self) -> Value {
        let us = |ns: u64| (ns as f64 / 100.0).round() / 10.0;
        let at = |q| us(self.0.value_at_quantile(q));
        json!({
            "count": self.0.len(), "p50": at(0.5), "p90": at(0.9), "p99": at(0.99), "max": us(self.0.max()),
        })
    }
}

pub struct Report {
    fields: Map<String, Value>,
    errors: u64,
    samples: Vec<String>,
}

impl Report {
    pub fn new(scenario: &str) -> Report {
        let mut report = Report { fields: Map::new(), errors: 0, samples: Vec::new() };
        report.set("scenario", scenario);
        report
    }

    pub fn set(&mut self, name: &str, value: impl Into<Value>) {
        self.fields.insert(name.to_owned(), value.into());
    }

    /// Takes a field out again.
    pub fn take(&mut self, name: &str) -> Option<Value> {
        self.fields.remove(name)
    }

    pub fn times(&mut self, name: &str, times: &Times) {
        self.set(name, times.json());
    }

    /// `count` things in `time`, as a rate per second.
    pub fn rate(&mut self, name: &str, count: u64, time: Duration) {
        self.set(name, round(count as f64 / time.as_secs_f64(), 1));
    }

    pub fn server(&mut self, before: Option<Sample>, after: Option<Sample>, operations: u64) {
        let (Some(before), Some(after)) = (before, after) else {
            return;
        };
        let cpu_s = after.cpu_s - before.cpu_s;
        self.set(
            "server",
            json!({
                "rss_kib": after.rss_kib,
                "rss_growth_kib": after.rss_kib as i64 - before.rss_kib as i64,
                "rss_peak_kib": after.peak_kib,
                "cpu_s": round(cpu_s, 2),
                "cpu_us_per_op": round(cpu_s * 1e6 / operations.max(1) as f64, 1),
            }),
        );
    }

    pub fn error(&mut self, what: impl std::fmt::Display) {
        self.errors += 1;
        if self.samples.len() < 3 {
            self.samples.push(format!("{what:.300}"));
        }
    }

    pub fn failed(&self) -> bool {
        self.errors > 0
    }

    /// The line, without a line break.
    pub fn line(mut self) -> String {
        self.set("errors", self.errors);
        if !self.samples.is_empty() {
            let samples = std::mem::take(&mut self.samples);
            self.set("error_samples", samples);
        }
        Value::Object(self.fields).to_string()
    }
}

fn round(value: f64, digits: i32) -> f64 {
    let scale = 10f64.powi(digits);
    (value * scale).round() / scale
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_the_times_in_microseconds() {
        let mut times = Times::default();
        for us in 1..=100 {
            times.add(Duration::from_micros(us));
        }
        let mut report = Report::new("x");
        report.times("t_us", &times);
        report.error("one");
        let line: Value = serde_json::from_str(&report.line()).unwrap();
        assert_eq!(line["t_us"]["count"], 100);
        assert!((line["t_us"]["p50"].as_f64().unwrap() - 50.0).abs() < 1.0);
        assert_eq!(line["errors"], 1);
    }
}
