//! What is to be served, checked as far as it can be before anything is opened.

use std::net::IpAddr;

use bugle::{notification::NotificationOptions, provider::SharedProvider, storage::SharedStorage};
use bugle_server::{Auth, ModelResolver, Origins, ServerOptions, Token};
use bugle_storage::libsql::{LibSqlOptions, Synchronous};
use secrecy::ExposeSecret as _;

use crate::{
    agents::{self, Models, Served},
    demo,
    env::Env,
    exit::Failure,
    project,
    settings::{Origin, Problem, Settings, secret, value::address},
    webhooks::Webhooks,
};

/// The shortest token that may be used beyond loopback, in characters (CLI-032).
const TOKEN_LEN_MIN: usize = 16;

/// A server to be.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) settings: Settings,
    models: Models,
    pub(super) agents: Vec<Served>,
    pub(super) is_demo: bool,
    /// Faulty files that `dev` leaves out.
    pub(super) left_out: Vec<Problem>,
    warnings: Vec<String>,
    auth: Auth,
    host: String,
    port: u16,
    /// The webhooks, each with its agent (CLI-035).
    pub(super) webhooks: Vec<(String, SharedProvider)>,
}

impl Plan {
    /// What `dev` serves: faulty agents are left out, and without any there is the demo (CLI-013, CLI-030).
    pub(super) fn of_dev(settings: Settings, env: Env) -> Result<Self, Failure> {
        let mut plan = Self::new(settings, env)?;
        if plan.agents.is_empty() && plan.left_out.is_empty() {
            let state = project::state_directory(&plan.settings.directory).map_err(|error| {
                Failure::usage(format!(".bugle cannot be made: {error}")).hint("start in a directory you may write to")
            })?;
            plan.agents = demo::agents(&state).map_err(|error| Failure::usage(error.to_string()))?;
            plan.is_demo = true;
        }
        Ok(plan)
    }

    /// What `serve` serves: all of it, or nothing.
    pub(super) fn of_serve(settings: Settings, env: Env) -> Result<Self, Failure> {
        let plan = Self::new(settings, env)?;
        if !plan.left_out.is_empty() {
            return Err(Failure::files(&plan.left_out));
        }
        if plan.agents.is_empty() {
            let what = format!("no agents in {}", plan.settings.directory.display());
            return Err(Failure::usage(what).hint("write one into agents/NAME.md, or try the demo with: bugle dev"));
        }
        Ok(plan)
    }

    fn new(settings: Settings, env: Env) -> Result<Self, Failure> {
        let models = Models::new(&settings, &env);
        let webhooks = Webhooks::new(&settings, &env);
        let agents::Found { agents, mut problems, warnings, any: _ } = agents::load(&settings, &models, &webhooks);
        let default = settings.text("agents.default");
        if let Some(default) = default.filter(|id| !agents.iter().any(|served| served.agent.id() == *id)) {
            let known: Vec<&str> = agents.iter().map(|served| served.agent.id()).collect();
            let known =
                if known.is_empty() { "there are none".into() } else { format!("known are {}", known.join(", ")) };
            let place = settings.get("agents.default").map(|setting| setting.origin.to_string()).unwrap_or_default();
            problems.push(Problem { place, message: format!("agents.default: no agent {default:?}; {known}") });
        }
        for file in settings.list("mcp.files").unwrap_or_default() {
            if settings.base_of("mcp.files").join(file).exists() {
                let message = "tool servers are not in this version; remove the file, or set files = [] under [mcp]";
                problems.push(Problem { place: file.clone(), message: message.into() });
            }
        }
        let (host, port) = settings.text("server.listen").and_then(address).unwrap_or_default();
        let auth = auth(&settings, &env, &host)?;
        let ids: Vec<&str> = agents.iter().map(|served| served.agent.id()).collect();
        let webhooks = webhooks.checked(&ids).map_err(Failure::files)?;
        let is_demo = false;
        let left_out = problems;
        let mut plan = Self { settings, models, agents, is_demo, left_out, warnings, auth, host, port, webhooks };
        plan.check_server()?;
        for hook in plan.settings.webhooks.iter().filter(|hook| hook.secrets.is_empty()) {
            let warning =
                format!("webhooks: {} has no secrets, so it has no route; add secrets = [\"env:NAME\"]", hook.id);
            plan.warnings.push(warning);
        }
        let more = std::mem::take(&mut plan.settings.warnings);
        plan.warnings.extend(more);
        if plan.settings.text("storage.url").is_some_and(|url| url.trim() == "memory:") {
            plan.warnings.push("storage: memory: accepted input does not survive a restart".into());
        }
        Ok(plan)
    }

    fn check_server(&self) -> Result<(), Failure> {
        let prefix = self.settings.text("server.prefix").unwrap_or("/api");
        let is_path = prefix.starts_with('/') && prefix.len() > 1 && !prefix.ends_with('/');
        if !is_path || prefix.contains(['{', '}', '*', '?', '#', ' ']) {
            let message = format!("server.prefix: {prefix:?} must begin with / and not end with it");
            let place = self.settings.get("server.prefix").map(|it| it.origin.to_string()).unwrap_or_default();
            return Err(Failure::files([Problem { place, message }]));
        }
        let is_open = matches!(self.auth, Auth::None) && !is_loopback(&self.host);
        if is_open && !self.settings.flag("server.allow-anonymous") {
            let what = format!("{}:{} can be reached from other machines, and auth.mode is none", self.host, self.port);
            return Err(Failure::usage(what)
                .hint("set auth.mode = \"tokens\", or server.allow-anonymous = true if everybody may use it"));
        }
        Ok(())
    }

    pub(super) fn address(&self) -> (&str, u16) {
        (&self.host, self.port)
    }

    /// Said at the start, but no reason to stop.
    pub(super) fn warnings(&self) -> Vec<String> {
        let missing = self
            .agents
            .iter()
            .flat_map(|served| served.missing.iter().map(|missing| format!("{}: {missing}", served.agent.id())));
        missing.chain(self.warnings.iter().cloned()).collect()
    }

    /// Whom the server lets in, in words.
    pub(super) fn auth_text(&self) -> String {
        match &self.auth {
            Auth::Tokens(tokens) => {
                let users: std::collections::BTreeSet<&str> = tokens.iter().map(|token| token.user.as_str()).collect();
                format!("tokens, {} user{}", users.len(), if users.len() == 1 { "" } else { "s" })
            }
            Auth::None if is_loopback(&self.host) => "none, loopback only".into(),
            Auth::None => "none, open to everybody who can reach it".into(),
        }
    }

    /// How notifications are delivered.
    pub(super) fn notifications(&self) -> NotificationOptions {
        let settings = &self.settings;
        let number = |path: &str| settings.number(path).and_then(|number| u32::try_from(number).ok());
        let default = NotificationOptions::default();
        NotificationOptions {
            dispatch: settings.flag("notifications.dispatch"),
            batch_size: number("notifications.batch-size").unwrap_or(default.batch_size),
            safety_poll: settings.duration("notifications.safety-poll").unwrap_or(default.safety_poll),
            cron: settings.text("notifications.cron").map(str::to_owned),
            max_attempts: number("notifications.max-attempts").unwrap_or(default.max_attempts),
            dedupe_window: settings.duration("notifications.dedupe-window").unwrap_or(default.dedupe_window),
            render_id: settings.flag("notifications.render-id"),
        }
    }

    /// Opens the store, off the async threads.
    pub(super) async fn open_storage(&self) -> Result<SharedStorage, Failure> {
        let url = self.settings.text("storage.url").unwrap_or_default().trim().to_owned();
        let base = match self.settings.get("storage.url").map(|setting| &setting.origin) {
            Some(Origin::File { directory, .. }) => directory.clone(),
            _ => self.settings.directory.clone(),
        };
        let full = self.settings.text("storage.synchronous") == Some("full");
        let open = tokio::task::spawn_blocking(move || -> Result<SharedStorage, bugle::storage::StorageError> {
            let Some(path) = url.strip_prefix("file:").filter(|path| !path.starts_with(":memory:")) else {
                return bugle_storage::open(&url);
            };
            let path = path.strip_prefix("//").unwrap_or(path);
            let url = format!("file:{}", base.join(path).display());
            let synchronous = if full { Synchronous::Full } else { Synchronous::Normal };
            let store = LibSqlOptions::builder().url(url).synchronous(synchronous).build().open()?;
            Ok(std::sync::Arc::new(store))
        });
        match open.await {
            Ok(Ok(storage)) => Ok(storage),
            Ok(Err(error)) => Err(Failure::usage(format!("storage.url: {error}")).caused_by(&error)),
            Err(_) => Err(Failure::new(crate::exit::BUG, "opening the store failed")),
        }
    }

    pub(super) fn server_options(&self) -> Result<ServerOptions, Failure> {
        let settings = &self.settings;
        let missing = |path: &str| Failure::new(crate::exit::BUG, format!("{path} has no value"));
        let models = self.models.clone();
        let resolver = ModelResolver::new(move |name| models.resolve(name).map(|resolved| resolved.entry.model));
        let origins = settings.list("server.cors-origins").map_or(Origins::Any, |list| Origins::Only(list.to_vec()));
        let max_body = settings.number("server.max-body").and_then(|bytes| usize::try_from(bytes).ok());
        Ok(ServerOptions::builder()
            .prefix(settings.text("server.prefix").unwrap_or("/api"))
            .max_body(max_body.ok_or_else(|| missing("server.max-body"))?)
            .keep_alive(settings.duration("server.keep-alive").ok_or_else(|| missing("server.keep-alive"))?)
            .origins(origins)
            .auth(self.auth.clone())
            .models(resolver)
            .version(env!("CARGO_PKG_VERSION"))
            .build())
    }
}

fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

fn auth(settings: &Settings, env: &Env, host: &str) -> Result<Auth, Failure> {
    if settings.text("auth.mode") != Some("tokens") {
        if let Some(row) = settings.tokens.first() {
            let message =
                "auth.tokens are given, but auth.mode is none and lets everybody in; set auth.mode = \"tokens\"";
            return Err(Failure::files([Problem { place: row.place.clone(), message: message.into() }]));
        }
        return Ok(Auth::None);
    }
    if settings.tokens.is_empty() {
        return Err(
            Failure::usage("auth.mode is tokens, but there are none").hint("add [[auth.tokens]] with token and user")
        );
    }
    let (mut tokens, mut problems) = (Vec::<Token>::new(), Vec::new());
    for row in &settings.tokens {
        let mut wrong = |message: String| problems.push(Problem { place: row.place.clone(), message });
        match secret(&row.token, &row.directory, env) {
            Err(message) => wrong(format!("auth.tokens.token: {message}")),
            Ok(token) if token.expose_secret().chars().count() < TOKEN_LEN_MIN && !is_loopback(host) => {
                wrong(format!(
                    "auth.tokens.token: shorter than {TOKEN_LEN_MIN} characters, and not only loopback can guess"
                ));
            }
            Ok(token) if tokens.iter().any(|other| other.secret == token.expose_secret()) => {
                wrong("auth.tokens.token: another row has the same token".into());
            }
            Ok(token) => tokens.push(
                Token::builder()
                    .secret(token.expose_secret())
                    .user(row.user.clone())
                    .resource(row.resource.clone().unwrap_or_else(|| row.user.clone()))
                    .allow(row.allow)
                    .build(),
            ),
        }
    }
    if problems.is_empty() { Ok(Auth::Tokens(tokens)) } else { Err(Failure::files(problems)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(toml: &str) -> Result<Plan, String> {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("agents")).unwrap();
        std::fs::write(directory.path().join("agents/a.md"), "---\nmodel: scripted/scripted\n---\nHelp.").unwrap();
        std::fs::write(directory.path().join("bugle.toml"), toml).unwrap();
        let settings = Settings::load(directory.path(), None, &Env::default()).unwrap();
        Plan::of_serve(settings, Env::default()).map_err(|failure| failure.render(false, false))
    }

    #[test]
    fn cli_031_listening_beyond_loopback_without_auth_is_refused() {
        let refused = plan("[server]\nlisten = \"0.0.0.0:0\"").unwrap_err();
        assert!(refused.contains("can be reached from other machines"), "{refused}");
        let open = plan("[server]\nlisten = \"0.0.0.0:0\"\nallow-anonymous = true").unwrap();
        assert_eq!(open.auth_text(), "none, open to everybody who can reach it");
        for host in ["127.0.0.1", "localhost", "[::1]"] {
            let plan = plan(&format!("[server]\nlisten = \"{host}:0\"")).unwrap();
            assert_eq!(plan.auth_text(), "none, loopback only");
        }
    }

    #[test]
    fn cli_032_short_tokens_are_for_loopback_only() {
        let toml = |host: &str, token: &str| {
            format!(
                "[server]\nlisten = \"{host}:0\"\n[auth]\nmode = \"tokens\"\n[[auth.tokens]]\ntoken = \"{token}\"\nuser = \"ann\"\n"
            )
        };
        assert_eq!(plan(&toml("127.0.0.1", "short")).unwrap().auth_text(), "tokens, 1 user");
        assert!(plan(&toml("0.0.0.0", "short")).unwrap_err().contains("shorter than 16 characters"));
        assert!(plan(&toml("0.0.0.0", "long-enough-to-be-used")).is_ok());
        assert!(plan(&toml("127.0.0.1", "env:NOT_SET")).unwrap_err().contains("the variable NOT_SET is not set"));
        assert!(plan("[auth]\nmode = \"tokens\"").unwrap_err().contains("there are none"));
        let useless = plan("[[auth.tokens]]\ntoken = \"t\"\nuser = \"u\"").unwrap_err();
        assert!(useless.contains("auth.mode is none"), "{useless}");
    }

    #[test]
    fn cli_033_memory_storage_warns_that_nothing_survives() {
        let plan = plan("[storage]\nurl = \"memory:\"").unwrap();
        assert_eq!(plan.warnings(), ["storage: memory: accepted input does not survive a restart"]);
    }

    #[test]
    fn cli_003_prefix_and_default_agent_are_checked() {
        assert!(plan("[server]\nprefix = \"api/\"").unwrap_err().contains("must begin with /"));
        assert!(
            plan("[agents]\ndefault = \"b\"")
                .unwrap_err()
                .contains("bugle.toml:2:1: agents.default: no agent \"b\"; known are a")
        );
    }
}
