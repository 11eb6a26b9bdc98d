//! The client: one server, its agents and its threads.

use bugle::message::{StoredMessage, Thread as StoredThread};
use indexmap::IndexMap;
use reqwest::Method;
use serde::Deserialize;
use serde_json::Value;

use crate::{
    agent::Agent,
    error::Error,
    http::{Http, segment},
    types::{AgentInfo, Page},
};

/// A server. Cheap to clone; clones share their connections.
#[derive(Debug, Clone)]
pub struct Client {
    http: Http,
}

/// Builds a [`Client`].
#[derive(Debug)]
#[must_use]
pub struct ClientBuilder {
    url: String,
    token: Option<String>,
}

impl ClientBuilder {
    /// The bearer token of the user. Without one, the server must need none.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// The client. Nothing is sent yet.
    ///
    /// # Errors
    /// [`Error::Url`], [`Error::Setup`].
    pub fn build(self) -> Result<Client, Error> {
        Ok(Client { http: Http::new(&self.url, self.token)? })
    }
}

/// Which threads are listed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ThreadQuery {
    /// Those of one resource; of all by default.
    pub resource_id: Option<String>,
    /// From 0.
    pub page: u32,
    /// Default 100.
    pub per_page: Option<u32>,
}

impl Client {
    /// A server without a token. `url` is its address, such as `http://127.0.0.1:4111`; a path in it replaces `/api`.
    ///
    /// # Errors
    /// As [`ClientBuilder::build`].
    pub fn new(url: impl Into<String>) -> Result<Self, Error> {
        Self::builder(url).build()
    }

    /// A server, with options.
    pub fn builder(url: impl Into<String>) -> ClientBuilder {
        ClientBuilder { url: url.into(), token: None }
    }

    /// The server's address, without user and password.
    pub fn url(&self) -> &str {
        self.http.origin()
    }

    /// An agent by id or key. Nothing is sent yet.
    pub fn agent(&self, id: impl Into<String>) -> Agent {
        Agent::new(self.http.clone(), id.into())
    }

    /// All agents, by the key they were registered under.
    pub async fn agents(&self) -> Result<IndexMap<String, AgentInfo>, Error> {
        self.http.json(self.http.request(Method::GET, "/agents").query(&[("partial", "true")])).await
    }

    /// The threads of the server's store, newest first (HTTP-151).
    pub async fn threads(&self, query: &ThreadQuery) -> Result<Page<StoredThread>, Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Threads {
            #[serde(rename = "threads")]
            items: Vec<StoredThread>,
            #[serde(default)]
            total: u64,
            #[serde(default)]
            has_more: bool,
        }
        let mut fields = vec![("page", query.page.to_string()), ("orderBy[field]", "updatedAt".into())];
        fields.push(("orderBy[direction]", "DESC".into()));
        if let Some(resource) = &query.resource_id {
            fields.push(("resourceId", resource.clone()));
        }
        if let Some(per_page) = query.per_page {
            fields.push(("perPage", per_page.to_string()));
        }
        let request = self.http.request(Method::GET, "/memory/threads").query(&fields);
        let Threads { items, total, has_more } = self.http.json(request).await?;
        Ok(Page { items, total, has_more })
    }

    /// A thread (HTTP-152). `resource` hides other resources' threads.
    ///
    /// # Errors
    /// [`Error::Status`] 404 if there is none.
    pub async fn thread(&self, id: &str, resource: Option<&str>) -> Result<StoredThread, Error> {
        let path = format!("/memory/threads/{}", segment(id));
        self.http.json(self.http.request(Method::GET, &path).query(&resource_query(resource))).await
    }

    /// A page of a thread's messages, oldest first within the page; page 0 is the newest (HTTP-154).
    pub async fn messages(
        &self,
        thread: &str,
        resource: Option<&str>,
        page: u32,
        per_page: u32,
    ) -> Result<Page<StoredMessage>, Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Messages {
            #[serde(rename = "messages")]
            items: Vec<StoredMessage>,
            #[serde(default)]
            total: u64,
            #[serde(default)]
            has_more: bool,
        }
        let path = format!("/memory/threads/{}/messages", segment(thread));
        let newest = [("orderBy[field]", "createdAt"), ("orderBy[direction]", "DESC")];
        let pages = [("page", page), ("perPage", per_page)];
        let request = self.http.request(Method::GET, &path).query(&newest).query(&pages);
        let Messages { items, total, has_more } = self.http.json(request.query(&resource_query(resource))).await?;
        Ok(Page { items, total, has_more })
    }

    /// Deletes a thread and its messages (HTTP-155). `agent` is any agent of the server; the API asks for one.
    pub async fn delete_thread(&self, id: &str, agent: &str, resource: Option<&str>) -> Result<(), Error> {
        let path = format!("/memory/threads/{}", segment(id));
        let request = self.http.request(Method::DELETE, &path).query(&[("agentId", agent)]);
        let _: Value = self.http.json(request.query(&resource_query(resource))).await?;
        Ok(())
    }
}

fn resource_query(resource: Option<&str>) -> Vec<(&'static str, &str)> {
    resource.map(|resource| ("resourceId", resource)).into_iter().collect()
}
