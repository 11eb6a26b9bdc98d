//! Which server, agent, thread and resource a command means (CLI-050, CLI-051).

use std::path::{Path, PathBuf};

use bugle_client::{Client, Thread};

use super::Session;
use crate::{
    agents::DEFAULT_MARK,
    args::Target,
    exit::Failure,
    project::{self, ServerFile},
    settings::Settings,
};

/// A command's target, as far as it is known without asking.
pub(super) struct Connection {
    pub(super) client: Client,
    pub(super) resource: String,
    pub(super) thread: String,
    agent: Option<String>,
}

impl Connection {
    /// Finds out what is meant; asks nobody.
    pub(super) fn new(target: &Target, session: &Session) -> Result<Self, Failure> {
        let env = &session.env;
        let given = |flag: &Option<String>, variable: &str| {
            flag.clone().or_else(|| env.get(variable).map(str::to_owned)).filter(|text| !text.is_empty())
        };
        // A variable of a script that is not set would otherwise mean another thread than was thought of.
        for (flag, text) in [
            ("--server", &target.server),
            ("--token", &target.token),
            ("--agent", &target.agent),
            ("--thread", &target.thread),
            ("--resource", &target.resource),
        ] {
            if text.as_deref() == Some("") {
                return Err(Failure::usage(format!("{flag} is empty")).hint("give it a value, or leave it out"));
            }
        }
        let start: PathBuf = std::env::current_dir()
            .map_err(|error| Failure::usage(format!("the current directory cannot be read: {error}")))?;
        let home = env.get("HOME").map(Path::new);
        let directory = project::find(session.common.directory.as_deref(), &start, home)?;
        let settings = Settings::load(&directory, session.common.config.as_deref(), env).map_err(Failure::files)?;
        let url = given(&target.server, "BUGLE_SERVER")
            .or_else(|| ServerFile::live(&directory).map(|file| file.url))
            .unwrap_or_else(|| "http://127.0.0.1:4111".into());
        let mut builder = Client::builder(url);
        if let Some(token) = given(&target.token, "BUGLE_TOKEN") {
            builder = builder.token(token);
        }
        let user = ["USER", "LOGNAME", "USERNAME"].iter().find_map(|name| env.get(name)).unwrap_or("user").to_owned();
        Ok(Self {
            client: builder.build()?,
            resource: given(&target.resource, "BUGLE_RESOURCE").unwrap_or(user),
            thread: given(&target.thread, "BUGLE_THREAD").unwrap_or_else(|| "main".into()),
            agent: given(&target.agent, "BUGLE_AGENT").or_else(|| settings.text("agents.default").map(str::to_owned)),
        })
    }

    /// The agent: as given, the one the server marks as default, the only one.
    pub(super) async fn agent(&self) -> Result<String, Failure> {
        if let Some(agent) = &self.agent {
            return Ok(agent.clone());
        }
        let agents = self.client.agents().await?;
        let marked = agents.iter().find(|(_, agent)| {
            agent
                .fields
                .get("metadata")
                .and_then(|metadata| metadata.get(DEFAULT_MARK))
                .and_then(bugle::json::Value::as_bool)
                == Some(true)
        });
        if let Some((key, _)) = marked {
            return Ok(key.clone());
        }
        let mut keys = agents.keys();
        match (keys.next(), keys.next()) {
            (Some(only), None) => Ok(only.clone()),
            (None, _) => Err(Failure::new(crate::exit::NOT_FOUND, format!("{} has no agents", self.client.url()))),
            _ => {
                let known: Vec<&str> = agents.keys().map(String::as_str).collect();
                Err(Failure::usage(format!("there are several agents: {}", known.join(", ")))
                    .hint("name one with -a, or set agents.default in bugle.toml"))
            }
        }
    }

    /// A failure in the words of the command line: an agent that is not there is named with those that are.
    pub(super) async fn explain(&self, failure: Failure) -> Failure {
        let Some(agent) = self.agent.as_ref().filter(|_| failure.status == Some(404)) else { return failure };
        let Ok(agents) = self.client.agents().await else { return failure };
        if agents.contains_key(agent) {
            return failure;
        }
        let known: Vec<&str> = agents.keys().map(String::as_str).collect();
        let near = crate::text::nearest(agent, known.iter().copied());
        let near = near.map(|near| format!("; did you mean {near}?")).unwrap_or_default();
        let hint = match known.as_slice() {
            [] => "it has none".to_owned(),
            known => format!("known are {}{near}", known.join(", ")),
        };
        let what = format!("{} has no agent {agent}", self.client.url());
        Failure { whats: vec![what], ..failure }.hint(hint)
    }

    /// The thread, answered by the agent.
    pub(super) async fn thread(&self) -> Result<Thread, Failure> {
        Ok(self.client.agent(self.agent().await?).thread(&self.resource, &self.thread))
    }
}
