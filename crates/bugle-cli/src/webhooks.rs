//! `[[webhooks]]` of `bugle.toml` as providers, for their own agents and for those that name them under `signals` (CLI §2, §4).

use std::sync::Arc;

use bugle::{
    provider::{Scheme, Secret, SharedProvider, TaskSignals, WebhookOptions, WebhookPreset, WebhookProvider},
    storage::ProviderSubscription,
};
use secrecy::ExposeSecret as _;

use crate::{
    env::Env,
    settings::{Problem, Settings, WebhookSetting, secret},
};

/// The built-in provider that agent files can name.
pub(crate) const TASKS: &str = "tasks";

/// The webhooks of a project.
#[derive(Debug, Default)]
pub(crate) struct Webhooks {
    hooks: Vec<Hook>,
    problems: Vec<Problem>,
}

#[derive(Debug)]
struct Hook {
    id: String,
    agent: String,
    place: String,
    /// None if its secrets are missing.
    made: Option<Made>,
}

#[derive(Debug)]
struct Made {
    /// With the subscriptions of the configuration, which are its own agent's.
    own: SharedProvider,
    /// For other agents: those of their threads that have subscribed are told.
    others: SharedProvider,
}

impl Webhooks {
    /// Makes them; what is wrong with their secrets is kept for [`Self::checked`].
    pub(crate) fn new(settings: &Settings, env: &Env) -> Self {
        let mut webhooks = Self::default();
        for setting in &settings.webhooks {
            let made = made(setting, env);
            if let Err(message) = &made {
                let message = format!("webhooks.secrets: {message}");
                webhooks.problems.push(Problem { place: setting.place.clone(), message });
            }
            webhooks.hooks.push(Hook {
                id: setting.id.clone(),
                agent: setting.agent.clone(),
                place: setting.place.clone(),
                made: made.ok(),
            });
        }
        webhooks
    }

    /// What an agent file can name under `signals`.
    pub(crate) fn names(&self) -> Vec<&str> {
        std::iter::once(TASKS).chain(self.hooks.iter().map(|hook| hook.id.as_str())).collect()
    }

    /// The provider of this name, for this agent.
    pub(crate) fn provider(&self, name: &str, agent: &str) -> Option<SharedProvider> {
        if name == TASKS {
            return Some(Arc::new(TaskSignals));
        }
        let hook = self.hooks.iter().find(|hook| hook.id == name)?;
        let made = hook.made.as_ref()?;
        Some(if hook.agent == agent { made.own.clone() } else { made.others.clone() })
    }

    /// Each with its own agent.
    ///
    /// # Errors
    /// Secrets that are missing, and agents that are not among `agents`.
    pub(crate) fn checked(self, agents: &[&str]) -> Result<Vec<(String, SharedProvider)>, Vec<Problem>> {
        let mut problems = self.problems;
        let mut made = Vec::with_capacity(self.hooks.len());
        for hook in self.hooks {
            if !agents.contains(&hook.agent.as_str()) {
                let known = match agents {
                    [] => "there are none".to_owned(),
                    known => format!("known are {}", known.join(", ")),
                };
                let message = format!("webhooks.agent: no agent {:?}; {known}", hook.agent);
                problems.push(Problem { place: hook.place, message });
            } else if let Some(provider) = hook.made {
                made.push((hook.agent, provider.own));
            }
        }
        if problems.is_empty() { Ok(made) } else { Err(problems) }
    }
}

fn made(setting: &WebhookSetting, env: &Env) -> Result<Made, String> {
    let secrets = setting.secrets.iter().map(|raw| secret(raw, &setting.directory, env));
    let secrets = secrets.collect::<Result<Vec<_>, String>>()?;
    let secrets: Vec<Secret> = secrets.iter().map(|secret| Secret::new(secret.expose_secret())).collect();
    let scheme = if setting.preset == "standard-webhooks" { Scheme::StandardWebhooks } else { Scheme::github() };
    for (number, secret) in secrets.iter().enumerate() {
        secret.check(&scheme).map_err(|wrong| format!("number {}: {wrong}", number + 1))?;
    }
    let subscriptions = setting.subscriptions.iter().map(|[resource, thread, external]| ProviderSubscription {
        id: format!("{}:{resource}:{thread}:{external}", setting.id),
        agent_id: setting.agent.clone(),
        provider_id: setting.id.clone(),
        resource_id: resource.clone(),
        thread_id: thread.clone(),
        external_resource_id: external.clone(),
        enabled: true,
        cursor: None,
        delivery_options: None,
        metadata: None,
        subscribed_at: bugle::time::Timestamp::now(),
    });
    let options = WebhookOptions::builder()
        .id(setting.id.as_str())
        .preset(match setting.preset.as_str() {
            "github" => WebhookPreset::GitHub,
            "standard-webhooks" => WebhookPreset::StandardWebhooks,
            _ => WebhookPreset::Generic,
        })
        .secrets(secrets)
        .tolerance(setting.tolerance.unwrap_or(std::time::Duration::from_secs(300)))
        .maybe_external_id(setting.external_id.clone())
        .maybe_kind(setting.kind.clone())
        .maybe_summary(setting.summary.clone())
        .maybe_priority(setting.priority.clone())
        .subscriptions(subscriptions.collect())
        .build();
    let without = WebhookOptions { subscriptions: Vec::new(), ..options.clone() };
    Ok(Made { own: Arc::new(WebhookProvider::new(options)), others: Arc::new(WebhookProvider::new(without)) })
}
