//! Settings: flag over environment over the project's `bugle.toml` over the user's over the default (CLI-002).

mod read;
mod table;
pub(crate) mod value;

pub(crate) use value::{Scalar, parse_duration};

use std::{
    fmt,
    path::{Path, PathBuf},
    time::Duration,
};

use indexmap::IndexMap;
use secrecy::{ExposeSecret, SecretString};

use self::table::TABLE;
use crate::env::Env;

/// An error in a file or variable, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Problem {
    /// `bugle.toml:12:3`, or the variable's name.
    pub(crate) place: String,
    pub(crate) message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.message)
    }
}

/// Where a value is from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    Default,
    /// `bugle.toml:3:1`, and the directory that its relative paths are relative to.
    File {
        place: String,
        directory: PathBuf,
    },
    Variable(String),
    Flag(&'static str),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { place, .. } => f.write_str(place),
            Self::Variable(name) => f.write_str(name),
            Self::Flag(flag) => f.write_str(flag),
        }
    }
}

/// A value and where it is from.
#[derive(Debug, Clone)]
pub(crate) struct Setting {
    pub(crate) value: Scalar,
    pub(crate) origin: Origin,
}

/// A row of `[[auth.tokens]]`.
#[derive(Debug, Clone)]
pub(crate) struct TokenSetting {
    pub(crate) place: String,
    pub(crate) directory: PathBuf,
    pub(crate) token: SecretString,
    pub(crate) user: String,
    pub(crate) resource: Option<String>,
    pub(crate) allow: bool,
}

/// A row of `[[webhooks]]`.
#[derive(Debug, Clone)]
pub(crate) struct WebhookSetting {
    pub(crate) place: String,
    pub(crate) directory: PathBuf,
    pub(crate) id: String,
    pub(crate) agent: String,
    pub(crate) preset: String,
    pub(crate) secrets: Vec<SecretString>,
    pub(crate) tolerance: Option<Duration>,
    pub(crate) external_id: Option<String>,
    pub(crate) kind: Option<String>,
    pub(crate) summary: Option<String>,
    pub(crate) priority: Option<String>,
    /// Resource, thread, and what it follows.
    pub(crate) subscriptions: Vec<[String; 3]>,
}

/// `[models.providers.<id>]`.
#[derive(Debug, Clone, Default)]
pub(crate) struct ProviderSetting {
    pub(crate) directory: PathBuf,
    pub(crate) base_url: Option<String>,
    pub(crate) api_key: Option<SecretString>,
    pub(crate) max_retries: Option<u32>,
}

/// All settings, with their defaults filled in.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// The project directory.
    pub(crate) directory: PathBuf,
    values: IndexMap<&'static str, Setting>,
    pub(crate) tokens: Vec<TokenSetting>,
    pub(crate) webhooks: Vec<WebhookSetting>,
    pub(crate) aliases: IndexMap<String, String>,
    pub(crate) providers: IndexMap<String, ProviderSetting>,
    /// Said, but no reason to stop.
    pub(crate) warnings: Vec<String>,
}

impl Settings {
    /// Reads the user's file, the project's (or `config` in its place), and the environment.
    ///
    /// # Errors
    /// Everything that is wrong in any of them (CLI-003).
    pub(crate) fn load(directory: &Path, config: Option<&Path>, env: &Env) -> Result<Self, Vec<Problem>> {
        let mut settings = Self {
            directory: directory.to_owned(),
            values: IndexMap::new(),
            tokens: Vec::new(),
            webhooks: Vec::new(),
            aliases: IndexMap::new(),
            providers: IndexMap::new(),
            warnings: Vec::new(),
        };
        for key in TABLE {
            if let Some(default) = key.default {
                // The table's own defaults are tested to be right.
                if let Ok(value) = key.kind.parse_text(default) {
                    settings.values.insert(key.path, Setting { value, origin: Origin::Default });
                }
            }
        }
        let mut problems = Vec::new();
        let user = env
            .get("XDG_CONFIG_HOME")
            .map(PathBuf::from)
            .or_else(|| Some(Path::new(env.get("HOME")?).join(".config")))
            .map(|home| home.join("bugle/bugle.toml"));
        let project = config.map_or_else(|| directory.join("bugle.toml"), Path::to_owned);
        let files = [(user, false), (Some(project), config.is_some())];
        for (path, must_exist) in files.into_iter().filter_map(|(path, must)| Some((path?, must))) {
            let shown = path.strip_prefix(directory).unwrap_or(&path).display().to_string();
            match std::fs::read(&path) {
                Ok(bytes) => match String::from_utf8(bytes) {
                    Ok(text) => read::file(&mut settings, &mut problems, &shown, &path, &text),
                    Err(_) => problems.push(Problem { place: shown, message: "the file is not UTF-8".into() }),
                },
                Err(error) if error.kind() == std::io::ErrorKind::NotFound && !must_exist => {}
                Err(error) => {
                    problems.push(Problem { place: shown, message: format!("the file cannot be read: {error}") });
                }
            }
        }
        read::environment(&mut settings, &mut problems, env);
        if let Some(cron) = settings.values.get("notifications.cron")
            && settings.values.get("notifications.safety-poll").is_some_and(|poll| poll.origin != Origin::Default)
        {
            let message = "notifications.cron: safety-poll says how often, too; keep one of the two".to_owned();
            problems.push(Problem { place: cron.origin.to_string(), message });
        }
        if problems.is_empty() { Ok(settings) } else { Err(problems) }
    }

    /// Takes a flag's value.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn set_flag(&mut self, path: &'static str, flag: &'static str, text: &str) -> Result<(), Problem> {
        let key = table::find(path).ok_or_else(|| Problem { place: flag.into(), message: "unknown".into() })?;
        let wrong = |message| Problem { place: flag.into(), message };
        let value = key.kind.parse_text(text).map_err(wrong)?;
        key.check_support(&value).map_err(wrong)?;
        self.values.insert(key.path, Setting { value, origin: Origin::Flag(flag) });
        Ok(())
    }

    pub(crate) fn get(&self, path: &str) -> Option<&Setting> {
        debug_assert!(table::find(path).is_some(), "{path} is in the table");
        self.values.get(path)
    }

    pub(crate) fn text(&self, path: &str) -> Option<&str> {
        match &self.get(path)?.value {
            Scalar::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(crate) fn flag(&self, path: &str) -> bool {
        matches!(self.get(path), Some(Setting { value: Scalar::Bool(true), .. }))
    }

    pub(crate) fn duration(&self, path: &str) -> Option<Duration> {
        match self.get(path)?.value {
            Scalar::Duration(duration) => Some(duration),
            _ => None,
        }
    }

    pub(crate) fn number(&self, path: &str) -> Option<u64> {
        match self.get(path)?.value {
            Scalar::Int(number) => u64::try_from(number).ok(),
            Scalar::Size(bytes) => Some(bytes),
            _ => None,
        }
    }

    pub(crate) fn list(&self, path: &str) -> Option<&[String]> {
        match &self.get(path)?.value {
            Scalar::List(list) => Some(list),
            _ => None,
        }
    }

    /// The directory that a relative path in this setting is relative to.
    pub(crate) fn base_of(&self, path: &str) -> PathBuf {
        match self.get(path).map(|setting| &setting.origin) {
            Some(Origin::File { directory, .. }) => directory.clone(),
            _ => self.directory.clone(),
        }
    }

    /// Every key with its effective value and origin; secrets are `***` (CLI-002).
    pub(crate) fn effective(&self) -> Vec<(String, String, String)> {
        let mut rows: Vec<_> = self
            .values
            .iter()
            .map(|(path, setting)| ((*path).to_owned(), setting.value.to_string(), setting.origin.to_string()))
            .collect();
        for token in &self.tokens {
            let row = format!("*** (user {}, allow {})", token.user, token.allow);
            rows.push(("auth.tokens".into(), row, token.place.clone()));
        }
        for hook in &self.webhooks {
            let (secrets, fixed) = (hook.secrets.len(), hook.subscriptions.len());
            let row = format!("agent {}, preset {}, secrets {secrets}, subscriptions {fixed}", hook.agent, hook.preset);
            rows.push((format!("webhooks.{}", hook.id), row, hook.place.clone()));
        }
        for (alias, model) in &self.aliases {
            rows.push((format!("models.aliases.{alias}"), model.clone(), "file".into()));
        }
        for (id, provider) in &self.providers {
            let key = if provider.api_key.is_some() { ", api-key ***" } else { "" };
            let url = provider.base_url.as_deref().unwrap_or("-");
            rows.push((format!("models.providers.{id}"), format!("base-url {url}{key}"), "file".into()));
        }
        rows
    }
}

/// The secret that `raw` names: `env:NAME`, `file:PATH`, or itself (CLI-004).
///
/// # Errors
/// What is missing. The secret is never part of it.
pub(crate) fn secret(raw: &SecretString, directory: &Path, env: &Env) -> Result<SecretString, String> {
    let raw = raw.expose_secret();
    if let Some(name) = raw.strip_prefix("env:") {
        return env.get(name).map(SecretString::from).ok_or_else(|| format!("the variable {name} is not set"));
    }
    if let Some(path) = raw.strip_prefix("file:") {
        let text = std::fs::read_to_string(directory.join(path))
            .map_err(|error| format!("the file {path} cannot be read: {error}"))?;
        let text = text.strip_suffix('\n').map_or(text.as_str(), |text| text.strip_suffix('\r').unwrap_or(text));
        return if text.is_empty() { Err(format!("the file {path} is empty")) } else { Ok(text.into()) };
    }
    if raw.is_empty() { Err("it is empty".into()) } else { Ok(raw.into()) }
}

#[cfg(test)]
mod tests;
