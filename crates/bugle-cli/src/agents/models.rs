//! Models by name: `provider/model`, an alias, or `inherit` (CLI §2, LOOP-220).

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use bugle::{agent::ModelEntry, model::SharedModel};
use bugle_models::Providers;
use indexmap::IndexMap;
use secrecy::{ExposeSecret, SecretString};

use crate::{
    env::Env,
    settings::{Settings, secret},
    text::nearest,
};

type Lookup = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// What names of models mean in this project.
#[derive(Clone)]
pub(crate) struct Models {
    providers: Providers,
    /// What the providers see: settings over the environment.
    lookup: Lookup,
    aliases: IndexMap<String, String>,
    default: Option<String>,
    retries: Arc<BTreeMap<String, u32>>,
    env: Env,
    directory: PathBuf,
}

impl std::fmt::Debug for Models {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Models").field("aliases", &self.aliases).field("default", &self.default).finish_non_exhaustive()
    }
}

/// A model found by name.
#[derive(Debug, Clone)]
pub(crate) struct Resolved {
    pub(crate) entry: ModelEntry,
    /// `provider/model`, aliases resolved.
    pub(crate) name: String,
    /// Why its requests will fail, if that is known now.
    pub(crate) missing: Option<String>,
}

impl Models {
    /// From settings. A secret that is missing counts as not given: it is an error where it is needed (CLI-004).
    pub(crate) fn new(settings: &Settings, env: &Env) -> Self {
        let mut overlay: BTreeMap<String, String> = BTreeMap::new();
        let mut retries = BTreeMap::new();
        for (id, provider) in &settings.providers {
            let prefix = prefix(id);
            if let Some(url) = &provider.base_url {
                overlay.insert(format!("{prefix}_BASE_URL"), url.clone());
            }
            let key = provider.api_key.as_ref().and_then(|key| secret(key, &provider.directory, env).ok());
            if let Some(key) = key {
                let own = format!("{prefix}_API_KEY");
                let row = Providers::table().iter().find(|row| row.id == id);
                let variable = row.and_then(|row| row.key_variables.first().copied()).unwrap_or(&own);
                overlay.insert(variable.to_owned(), key.expose_secret().to_owned());
            }
            if let Some(count) = provider.max_retries {
                retries.insert(id.clone(), count);
            }
        }
        let lookup: Lookup = {
            let env = env.clone();
            Arc::new(move |name| overlay.get(name).map(String::as_str).or_else(|| env.get(name)).map(str::to_owned))
        };
        let providers = Providers::new({
            let lookup = lookup.clone();
            move |name| lookup(name)
        });
        Self {
            providers,
            lookup,
            aliases: settings.aliases.clone(),
            default: settings.text("models.default").map(str::to_owned),
            retries: Arc::new(retries),
            env: env.clone(),
            directory: settings.directory.clone(),
        }
    }

    /// The project's directory.
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// The model called `name`.
    ///
    /// # Errors
    /// What is wrong with the name, with the known ones.
    pub(crate) fn resolve(&self, name: &str) -> Result<Resolved, String> {
        let name = name.trim();
        if name == "inherit" {
            let default = self.default.as_deref().filter(|default| *default != "inherit");
            let default = default.ok_or("no default model; set `default` under [models] in bugle.toml")?;
            return self.resolve(default);
        }
        let full = self.aliases.get(name).map_or(name, String::as_str);
        if !full.contains('/') {
            let known: Vec<&str> = self.aliases.keys().map(String::as_str).collect();
            let near = nearest(full, known.iter().copied());
            let near = near.map(|near| format!("; did you mean {near}?")).unwrap_or_default();
            let known =
                if known.is_empty() { "there are none".into() } else { format!("known are {}", known.join(", ")) };
            return Err(format!(
                "{full:?} is neither provider/model nor an alias under [models.aliases] ({known}){near}"
            ));
        }
        let model = bugle_models::resolve(full, &self.providers).map_err(|error| error.to_string())?;
        let provider = full.split('/').next().unwrap_or_default();
        let entry = ModelEntry { model, max_retries: self.retries.get(provider).copied() };
        Ok(Resolved { entry, name: full.to_owned(), missing: self.missing(provider) })
    }

    /// The key that a provider needs and that is nowhere.
    fn missing(&self, provider: &str) -> Option<String> {
        let row = Providers::table().iter().find(|row| row.id == provider)?;
        let has = row.key_variables.iter().any(|name| (self.lookup)(name).is_some());
        let own_address = (self.lookup)(&format!("{}_BASE_URL", prefix(provider))).is_some();
        if has || row.key_optional || own_address {
            return None;
        }
        Some(format!("{} is not set; its runs will fail", row.key_variables.join(" or ")))
    }

    /// A model at an address of its own: the map form of `model` (LOOP-220).
    pub(crate) fn at_url(
        &self,
        id: &str,
        url: &str,
        key: Option<&SecretString>,
        headers: &[(String, String)],
        max_retries: Option<u32>,
    ) -> Result<Resolved, String> {
        let (provider, model) = id.split_once('/').unwrap_or(("custom", id));
        let mut builder = bugle_models::ChatModel::builder(url, model).provider(provider);
        if let Some(key) = key {
            let key = secret(key, Path::new("."), &self.env).map_err(|error| format!("apiKey: {error}"))?;
            builder = builder.api_key(key.expose_secret());
        }
        for (name, value) in headers {
            builder = builder.header(name, value);
        }
        let model: SharedModel = Arc::new(builder.build());
        let entry = ModelEntry { model, max_retries };
        Ok(Resolved {
            entry,
            name: format!("{provider}/{}", id.split_once('/').map_or(id, |(_, model)| model)),
            missing: None,
        })
    }
}

/// The start of a provider's variables.
fn prefix(id: &str) -> String {
    id.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' }).collect()
}
