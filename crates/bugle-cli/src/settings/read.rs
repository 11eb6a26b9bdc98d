//! Reading `bugle.toml` and the environment into settings; every error has its place (CLI-003).

use std::path::Path;

use secrecy::SecretString;
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{
    Origin, Problem, ProviderSetting, Setting, Settings, TokenSetting, WebhookSetting,
    table::{self, CLIENT_VARIABLES, Kind, PROVIDER_KEYS, SUBSCRIPTION_KEYS, TABLE, TOKEN_KEYS, WEBHOOK_KEYS},
    value::{Scalar, parse_duration},
};
use crate::{env::Env, text::nearest};

/// Where things are in a file.
struct Source<'a> {
    shown: &'a str,
    directory: &'a Path,
    text: &'a str,
}

impl Source<'_> {
    fn place(&self, at: usize) -> String {
        let before = &self.text[..self.text.floor_char_boundary(at)];
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        format!("{}:{line}:{column}", self.shown)
    }
}

/// Reads a file over what is there.
pub(super) fn file(settings: &mut Settings, problems: &mut Vec<Problem>, shown: &str, path: &Path, text: &str) {
    let text = text.trim_start_matches('\u{feff}');
    let directory = path.parent().unwrap_or(Path::new("."));
    let source = Source { shown, directory, text };
    let (table, errors) = DeTable::parse_recoverable(text);
    let mut found = Vec::new();
    for error in &errors {
        let at = error.span().map_or(0, |span| span.start);
        found.push((at, Problem { place: source.place(at), message: error.message().to_owned() }));
    }
    if errors.is_empty() {
        Reader { settings, problems: &mut found, source }.table("", table.get_ref());
    }
    // In the order of the file, not in that of the parser's tables.
    found.sort_by_key(|(at, _)| *at);
    problems.extend(found.into_iter().map(|(_, problem)| problem));
}

struct Reader<'a> {
    settings: &'a mut Settings,
    /// With the byte each is at.
    problems: &'a mut Vec<(usize, Problem)>,
    source: Source<'a>,
}

impl Reader<'_> {
    fn wrong(&mut self, at: usize, message: impl Into<String>) {
        self.problems.push((at, Problem { place: self.source.place(at), message: message.into() }));
    }

    fn table(&mut self, prefix: &str, table: &DeTable<'_>) {
        for (name, value) in table {
            let path =
                if prefix.is_empty() { name.get_ref().to_string() } else { format!("{prefix}.{}", name.get_ref()) };
            let at = name.span().start;
            match (path.as_str(), value.get_ref()) {
                ("auth.tokens", DeValue::Array(rows)) => {
                    for row in rows {
                        self.token(row);
                    }
                }
                ("models.aliases", DeValue::Table(entries)) => self.aliases(entries),
                ("models.providers", DeValue::Table(entries)) => self.providers(entries),
                ("auth.tokens", _) => self.wrong(at, "auth.tokens must be an array of tables: [[auth.tokens]]"),
                ("models.aliases" | "models.providers", _) => self.wrong(at, format!("{path} must be a table")),
                ("webhooks", DeValue::Array(rows)) => {
                    for row in rows {
                        self.webhook(row);
                    }
                }
                ("webhooks", _) => self.wrong(at, "webhooks must be an array of tables: [[webhooks]]"),
                (_, inner) => {
                    if let Some(key) = table::find(&path) {
                        self.key(key, at, value);
                    } else if let (DeValue::Table(inner), true) = (inner, is_section(&path)) {
                        self.table(&path, inner);
                    } else {
                        self.unknown(at, &path);
                    }
                }
            }
        }
    }

    fn unknown(&mut self, at: usize, path: &str) {
        let (section, name) = path.rsplit_once('.').unwrap_or(("", path));
        let known = siblings(section);
        let near = nearest(name, known.iter().map(String::as_str));
        let near = near.map(|near| format!("; did you mean \"{near}\"?")).unwrap_or_default();
        self.wrong(at, format!("{path}: unknown key{near}"));
    }

    fn key(&mut self, key: &'static table::Key, at: usize, value: &Spanned<DeValue<'_>>) {
        let scalar = match scalar(key.kind, value.get_ref()) {
            Ok(scalar) => scalar,
            Err(message) => return self.wrong(at, format!("{}: {message}", key.path)),
        };
        if let Err(message) = key.check_support(&scalar) {
            return self.wrong(at, message);
        }
        let origin = Origin::File { place: self.source.place(at), directory: self.source.directory.to_owned() };
        self.settings.values.insert(key.path, Setting { value: scalar, origin });
    }

    /// The members of a table of a list or map, with unknown ones refused.
    fn members(&mut self, what: &str, table: &DeTable<'_>, known: &[&str]) {
        for name in table.keys() {
            if !known.contains(&name.get_ref().as_ref()) {
                let near = nearest(name.get_ref(), known.iter().copied());
                let near = near.map(|near| format!("; did you mean \"{near}\"?")).unwrap_or_default();
                self.wrong(name.span().start, format!("{what}.{}: unknown key{near}", name.get_ref()));
            }
        }
    }

    fn text(&mut self, what: &str, table: &DeTable<'_>, name: &str) -> Option<String> {
        let value = table.get(name)?;
        let text = value.get_ref().as_str().map(str::to_owned);
        if text.is_none() {
            self.wrong(value.span().start, format!("{what}.{name}: must be a text"));
        }
        text
    }

    fn token(&mut self, row: &Spanned<DeValue<'_>>) {
        let at = row.span().start;
        let DeValue::Table(table) = row.get_ref() else {
            return self.wrong(at, "auth.tokens must be an array of tables: [[auth.tokens]]");
        };
        let what = "auth.tokens";
        self.members(what, table, &TOKEN_KEYS);
        let allow = match table.get("allow").map(|value| (value.span().start, value.get_ref().as_bool())) {
            None => true,
            Some((_, Some(allow))) => allow,
            Some((at, None)) => return self.wrong(at, "auth.tokens.allow: must be true or false"),
        };
        let (token, user) = (self.text(what, table, "token"), self.text(what, table, "user"));
        let resource = self.text(what, table, "resource");
        let (Some(token), Some(user)) = (token, user) else {
            for name in ["token", "user"] {
                if !table.contains_key(name) {
                    self.wrong(at, format!("auth.tokens.{name}: missing"));
                }
            }
            return;
        };
        if user.is_empty() || resource.as_deref() == Some("") {
            return self.wrong(at, "auth.tokens: user and resource must not be empty");
        }
        self.settings.tokens.push(TokenSetting {
            place: self.source.place(at),
            directory: self.source.directory.to_owned(),
            token: SecretString::from(token),
            user,
            resource,
            allow,
        });
    }

    /// The texts of a list.
    fn texts(&mut self, what: &str, table: &DeTable<'_>, name: &str) -> Vec<String> {
        let Some(value) = table.get(name) else { return Vec::new() };
        let texts = match value.get_ref() {
            DeValue::Array(items) => items.iter().map(|item| item.get_ref().as_str().map(str::to_owned)).collect(),
            _ => None,
        };
        texts.unwrap_or_else(|| {
            self.wrong(value.span().start, format!("{what}.{name}: must be a list of texts"));
            Vec::new()
        })
    }

    fn webhook(&mut self, row: &Spanned<DeValue<'_>>) {
        let at = row.span().start;
        let what = "webhooks";
        let DeValue::Table(table) = row.get_ref() else {
            return self.wrong(at, "webhooks must be an array of tables: [[webhooks]]");
        };
        self.members(what, table, &WEBHOOK_KEYS);
        let (Some(id), Some(agent)) = (self.text(what, table, "id"), self.text(what, table, "agent")) else {
            for name in ["id", "agent"] {
                if !table.contains_key(name) {
                    self.wrong(at, format!("webhooks.{name}: missing"));
                }
            }
            return;
        };
        if id.is_empty() || !id.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c)) {
            return self.wrong(at, format!("webhooks.id: {id:?} may hold letters, digits, -, _ and . only"));
        }
        if id == crate::webhooks::TASKS {
            return self.wrong(at, format!("webhooks.id: {id} is the built-in task list; take another id"));
        }
        let preset = self.text(what, table, "preset").unwrap_or_else(|| "generic".into());
        if !["generic", "github", "standard-webhooks"].contains(&preset.as_str()) {
            self.wrong(at, format!("webhooks.preset: {preset:?} must be generic, github or standard-webhooks"));
        }
        let priority = self.text(what, table, "priority");
        if priority.as_deref().is_some_and(|given| !["low", "medium", "high", "urgent"].contains(&given)) {
            self.wrong(at, "webhooks.priority: must be low, medium, high or urgent");
        }
        let tolerance = match self.text(what, table, "tolerance").as_deref().map(parse_duration) {
            None => None,
            Some(Ok(tolerance)) => Some(tolerance),
            Some(Err(error)) => return self.wrong(at, format!("webhooks.tolerance: {error}")),
        };
        let mut subscriptions = Vec::new();
        match table.get("subscriptions").map(|value| (value.span().start, value.get_ref())) {
            None => {}
            Some((_, DeValue::Array(rows))) => {
                for row in rows {
                    let DeValue::Table(table) = row.get_ref() else {
                        self.wrong(row.span().start, "webhooks.subscriptions: must be a list of tables");
                        continue;
                    };
                    let what = "webhooks.subscriptions";
                    self.members(what, table, &SUBSCRIPTION_KEYS);
                    let given = SUBSCRIPTION_KEYS.map(|name| self.text(what, table, name));
                    for (name, given) in SUBSCRIPTION_KEYS.iter().zip(&given) {
                        if given.as_ref().is_none_or(|given| !given.trim().is_empty()) {
                            continue;
                        }
                        self.wrong(row.span().start, format!("{what}.{name}: must not be blank"));
                    }
                    match given {
                        [Some(resource), Some(thread), Some(external)] => {
                            subscriptions.push([resource, thread, external]);
                        }
                        _ => {
                            let message = format!("{what}: resource, thread and external-id are needed");
                            self.wrong(row.span().start, message);
                        }
                    }
                }
            }
            Some((at, _)) => self.wrong(at, "webhooks.subscriptions: must be a list of tables"),
        }
        let mut pointer = |name: &str| {
            let pointer = self.text(what, table, name)?;
            if !pointer.starts_with('/') {
                self.wrong(at, format!("webhooks.{name}: {pointer:?} is no JSON pointer; it begins with /"));
            }
            Some(pointer)
        };
        let [external_id, kind, summary] = ["external-id", "kind", "summary"].map(&mut pointer);
        let secrets = self.texts(what, table, "secrets").into_iter().map(SecretString::from).collect();
        if self.settings.webhooks.iter().any(|known| known.id == id) {
            return self.wrong(at, format!("webhooks.id: two webhooks are called {id}"));
        }
        self.settings.webhooks.push(WebhookSetting {
            place: self.source.place(at),
            directory: self.source.directory.to_owned(),
            id,
            agent,
            preset,
            secrets,
            tolerance,
            external_id,
            kind,
            summary,
            priority,
            subscriptions,
        });
    }

    fn aliases(&mut self, entries: &DeTable<'_>) {
        for (name, value) in entries {
            match value.get_ref().as_str() {
                Some(model) if model.contains('/') => {
                    self.settings.aliases.insert(name.get_ref().to_string(), model.to_owned());
                }
                _ => {
                    let message = format!("models.aliases.{}: must be a text \"provider/model\"", name.get_ref());
                    self.wrong(value.span().start, message);
                }
            }
        }
    }

    fn providers(&mut self, entries: &DeTable<'_>) {
        for (name, value) in entries {
            let what = format!("models.providers.{}", name.get_ref());
            let DeValue::Table(table) = value.get_ref() else {
                self.wrong(value.span().start, format!("{what} must be a table"));
                continue;
            };
            self.members(&what, table, &PROVIDER_KEYS);
            for later in &PROVIDER_KEYS[3..] {
                if let Some((key, value)) = table.get_key_value(*later)
                    && !(*later == "api" && value.get_ref().as_str() == Some("chat"))
                {
                    self.wrong(key.span().start, format!("{what}.{later} is not in this version; remove it"));
                }
            }
            let base_url = self.text(&what, table, "base-url");
            if let Some(url) = &base_url
                && !["http://", "https://"].iter().any(|scheme| url.starts_with(scheme))
            {
                let at = table.get("base-url").map_or(0, |value| value.span().start);
                self.wrong(at, format!("{what}.base-url: {url:?} is no http:// or https:// address"));
            }
            let api_key = self.text(&what, table, "api-key").map(SecretString::from);
            let max_retries = table.get("max-retries").and_then(|value| {
                let number = integer(value.get_ref()).and_then(|number| u32::try_from(number).ok());
                if number.is_none_or(|number| number > 100) {
                    self.wrong(value.span().start, format!("{what}.max-retries: must be a whole number from 0 to 100"));
                }
                number
            });
            let directory = self.source.directory.to_owned();
            let setting = ProviderSetting { directory, base_url, api_key, max_retries };
            self.settings.providers.insert(name.get_ref().to_string(), setting);
        }
    }
}

fn is_section(path: &str) -> bool {
    let prefix = format!("{path}.");
    TABLE.iter().any(|key| key.path.starts_with(&prefix))
}

/// What may stand in a section; for `""` the sections.
fn siblings(section: &str) -> Vec<String> {
    let prefix = if section.is_empty() { String::new() } else { format!("{section}.") };
    let more = ["auth.tokens", "models.aliases", "models.providers", "webhooks"];
    let paths = TABLE.iter().map(|key| key.path).chain(more);
    let mut names: Vec<String> =
        paths.filter_map(|path| path.strip_prefix(&prefix)?.split('.').next().map(str::to_owned)).collect();
    names.dedup();
    names
}

fn integer(value: &DeValue<'_>) -> Option<i64> {
    let number = value.as_integer()?;
    i64::from_str_radix(number.as_str(), number.radix()).ok()
}

fn scalar(kind: Kind, value: &DeValue<'_>) -> Result<Scalar, String> {
    let scalar = match (kind, value) {
        (Kind::Int { .. }, DeValue::Integer(_)) => integer(value).map(Scalar::Int),
        (Kind::Int { .. }, _) => None,
        (Kind::Ratio, DeValue::Integer(_)) => integer(value).map(|number| Scalar::Ratio(number as f64)),
        (Kind::Ratio, DeValue::Float(number)) => number.as_str().parse().ok().map(Scalar::Ratio),
        (Kind::Ratio, _) => None,
        (Kind::Bool, DeValue::Boolean(flag)) => Some(Scalar::Bool(*flag)),
        (Kind::Bool, _) => None,
        (Kind::Duration { .. }, DeValue::Integer(number)) => parse_duration(number.as_str()).ok().map(Scalar::Duration),
        (Kind::Size { .. }, DeValue::Integer(_)) => {
            integer(value).and_then(|number| u64::try_from(number).ok()).map(Scalar::Size)
        }
        (Kind::List, DeValue::Array(items)) => items
            .iter()
            .map(|item| item.get_ref().as_str().map(str::to_owned))
            .collect::<Option<Vec<_>>>()
            .map(Scalar::List),
        (Kind::Map, DeValue::Table(entries)) => Some(Scalar::Map(entries.len())),
        (Kind::List | Kind::Map, _) => None,
        (_, DeValue::String(text)) => return kind.parse_text(text),
        _ => None,
    };
    let scalar = scalar.ok_or_else(|| format!("must be {}", kind.name()))?;
    kind.check_range(scalar)
}

/// Takes the variables: `BUGLE_<SECTION>_<KEY>`, and `HOST`, `PORT` (CLI §5).
pub(super) fn environment(settings: &mut Settings, problems: &mut Vec<Problem>, env: &Env) {
    let mut known: Vec<(String, &'static table::Key)> = Vec::new();
    for key in TABLE {
        if let Some(variable) = key.variable() {
            known.push((variable, key));
        }
    }
    for (variable, key) in &known {
        let Some(text) = env.get(variable) else { continue };
        let value = key.kind.parse_text(text).and_then(|value| key.check_support(&value).map(|()| value));
        match value {
            Ok(value) => {
                settings.values.insert(key.path, Setting { value, origin: Origin::Variable(variable.clone()) });
            }
            // A secret's text is not repeated.
            Err(_) if key.kind == Kind::Secret => {
                let message = format!("{} is not in this version; remove it", key.path);
                problems.push(Problem { place: variable.clone(), message });
            }
            Err(message) => problems.push(Problem { place: variable.clone(), message }),
        }
    }
    let listen_is_said =
        settings.values.get("server.listen").is_some_and(|it| matches!(it.origin, Origin::Variable(_)));
    if !listen_is_said && (env.get("HOST").is_some() || env.get("PORT").is_some()) {
        host_and_port(settings, problems, env);
    }
    for (name, _) in env.iter().filter(|(name, _)| name.starts_with("BUGLE_")) {
        if name == "BUGLE_SIGNALS_SOCKET_ROOT" {
            settings.warnings.push(format!("{name} has no effect: other processes are not reached in this version"));
            continue;
        }
        if CLIENT_VARIABLES.contains(&name) || known.iter().any(|(variable, _)| variable == name) {
            continue;
        }
        let candidates = known.iter().map(|(variable, _)| variable.as_str()).chain(CLIENT_VARIABLES);
        let near = nearest(name, candidates).map(|near| format!("; did you mean {near}?")).unwrap_or_default();
        settings.warnings.push(format!("{name} is no setting{near}"));
    }
    if let Some(text) = env.get("MASTRA_AGENT_THREAD_LEASE_TTL_MS")
        && settings.values.get("lease.ttl").is_none_or(|it| it.origin == Origin::Default)
        && let Some(key) = table::find("lease.ttl")
    {
        let name = "MASTRA_AGENT_THREAD_LEASE_TTL_MS";
        match key.kind.parse_text(text) {
            Ok(value) => {
                settings.values.insert(key.path, Setting { value, origin: Origin::Variable(name.into()) });
            }
            Err(message) => problems.push(Problem { place: name.into(), message }),
        }
    }
    for (theirs, own) in [
        ("MASTRA_AGENT_THREAD_LEASE_RENEW_INTERVAL_MS", "lease.renew-interval"),
        ("MASTRA_SUSPENDED_RUN_TTL_MS", "runs.suspended-ttl"),
        ("MASTRA_RESOURCE_ID", "cross-agent.resource-id"),
        ("MASTRACODE_SIGNALS_SOCKET_ROOT", "cross-agent.root"),
    ] {
        if env.get(theirs).is_some() {
            settings.warnings.push(format!("{theirs} has no effect: {own} is not in this version"));
        }
    }
}

fn host_and_port(settings: &mut Settings, problems: &mut Vec<Problem>, env: &Env) {
    let (host, port) = match settings.text("server.listen").and_then(super::value::address) {
        Some((host, port)) => (host, port.to_string()),
        None => ("127.0.0.1".into(), "4111".into()),
    };
    let host = env.get("HOST").unwrap_or(&host);
    let port = env.get("PORT").unwrap_or(&port);
    let host = if host.contains(':') && !host.starts_with('[') { format!("[{host}]") } else { host.to_owned() };
    let text = format!("{host}:{port}");
    match Kind::Address.parse_text(&text) {
        Ok(value) => {
            settings.values.insert("server.listen", Setting { value, origin: Origin::Variable("HOST, PORT".into()) });
        }
        Err(message) => problems.push(Problem { place: "HOST, PORT".into(), message }),
    }
}
