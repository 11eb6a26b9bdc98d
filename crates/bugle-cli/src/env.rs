//! The environment as one value: read once, so that nothing else of the binary looks at the process's own.

use std::{collections::BTreeMap, sync::Arc};

/// Variables by name. An empty one counts as unset. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Env {
    vars: Arc<BTreeMap<String, String>>,
}

impl std::fmt::Debug for Env {
    /// Variables hold keys; none is shown.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Env({})", self.vars.len())
    }
}

impl Env {
    /// The process's environment. Variables that are not UTF-8 are left out.
    pub(crate) fn of_process() -> Self {
        std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect()
    }

    /// The variable, if it is set to something.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.vars.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// All that are set to something.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.vars.iter().filter(|(_, value)| !value.is_empty()).map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Adds the assignments of a `.env` file; what is set already wins (CLI-005).
    ///
    /// # Errors
    /// The number of each line that is no assignment.
    pub(crate) fn with_file(&self, text: &str) -> Result<Self, Vec<usize>> {
        let mut vars = BTreeMap::clone(&self.vars);
        let mut wrong = Vec::new();
        for (index, line) in text.trim_start_matches('\u{feff}').lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let Some((name, value)) = assignment(line) else {
                wrong.push(index + 1);
                continue;
            };
            if vars.get(name).is_none_or(String::is_empty) {
                vars.insert(name.to_owned(), value);
            }
        }
        if wrong.is_empty() { Ok(Self { vars: Arc::new(vars) }) } else { Err(wrong) }
    }
}

impl FromIterator<(String, String)> for Env {
    fn from_iter<T: IntoIterator<Item = (String, String)>>(vars: T) -> Self {
        Self { vars: Arc::new(vars.into_iter().collect()) }
    }
}

/// `NAME=value`, `export NAME='value'`, `NAME="va\nlue" # comment`.
fn assignment(line: &str) -> Option<(&str, String)> {
    let line = line.strip_prefix("export ").unwrap_or(line);
    let (name, value) = line.split_once('=')?;
    let name = name.trim();
    let is_name = |name: &str| {
        !name.starts_with(|c: char| c.is_ascii_digit())
            && !name.is_empty()
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    if !is_name(name) {
        return None;
    }
    let value = value.trim();
    let value = match value.chars().next() {
        Some('\'') => value[1..].split_once('\'')?.0.to_owned(),
        Some('"') => {
            let mut out = String::new();
            let mut chars = value[1..].chars();
            loop {
                match chars.next()? {
                    '"' => break out,
                    '\\' => match chars.next()? {
                        'n' => out.push('\n'),
                        't' => out.push('\t'),
                        other => out.push(other),
                    },
                    other => out.push(other),
                }
            }
        }
        _ => value.split(" #").next().unwrap_or_default().trim_end().to_owned(),
    };
    Some((name, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cli_005_a_dot_env_file_fills_what_is_not_set() {
        let env: Env =
            [("A", "kept"), ("B", "")].map(|(name, value)| (name.to_owned(), value.to_owned())).into_iter().collect();
        let text = "# keys\nA=new\nB=filled\nexport C='x # y'\nD=\"a\\nb\" # c\nE=one # two\n";
        let env = env.with_file(text).unwrap();
        let values = ["A", "B", "C", "D", "E"].map(|name| env.get(name).unwrap().to_owned());
        assert_eq!(values, ["kept", "filled", "x # y", "a\nb", "one"]);
        assert_eq!(env.with_file("A=1\nnonsense\n1B=2\n").unwrap_err(), [2, 3]);
    }
}
