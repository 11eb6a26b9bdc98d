//! Readings of the server process from `/proc`.

use std::fs;

use anyhow::{Context, Result};

/// Clock ticks per second in `/proc/PID/stat`; 100 on every Linux in use.
const TICKS: f64 = 100.0;

#[derive(Clone, Copy, Debug)]
pub struct Sample {
    pub rss_kib: u64,
    pub peak_kib: u64,
    pub cpu_s: f64,
}

pub fn sample(pid: u32) -> Result<Sample> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let field = |name: &str| -> Result<u64> {
        let line = status.lines().find_map(|l| l.strip_prefix(name)).with_context(|| format!("no {name}"))?;
        Ok(line.trim().trim_end_matches(" kB").parse()?)
    };
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The command name may hold spaces; what follows its closing parenthesis does not.
    let rest = stat.rsplit_once(')').context("malformed stat")?.1;
    let ticks: Vec<f64> = rest.split_whitespace().skip(11).take(2).filter_map(|t| t.parse().ok()).collect();
    Ok(Sample { rss_kib: field("VmRSS:")?, peak_kib: field("VmHWM:")?, cpu_s: ticks.iter().sum::<f64>() / TICKS })
}

/// The one-minute load average, as a hint of how noisy the machine is.
pub fn load() -> Option<f64> {
    fs::read_to_string("/proc/loadavg").ok()?.split(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    #[test]
    fn reads_this_process() {
        let sample = super::sample(std::process::id()).unwrap();
        assert!(sample.rss_kib > 0 && sample.peak_kib >= sample.rss_kib && sample.cpu_s >= 0.0);
    }
}
