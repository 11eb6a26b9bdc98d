//! Subscriptions of signal providers in SQL (PROV-014), in a table of Bugle's own.

use std::fmt::Write as _;

use async_trait::async_trait;
use bugle::{
    storage::{ProviderSubscription, ProviderSubscriptions, StorageError, SubscriptionQuery, notifications::rules},
    time::Timestamp,
};
use rusqlite::{Connection, OptionalExtension, Row, params, params_from_iter};

use super::{
    LibSql, codec,
    error::{Answer, unavailable},
};

const TABLE: &str = "bugle_subscriptions";

fn read(row: &Row<'_>) -> rusqlite::Result<Option<ProviderSubscription>> {
    let body = codec::text(row, 0)?.unwrap_or_default();
    let found = codec::parse_json(&body);
    if found.is_none() {
        codec::report(TABLE, &codec::text(row, 1)?.unwrap_or_default(), "body");
    }
    Ok(found)
}

fn text(subscription: &ProviderSubscription) -> Answer<String> {
    serde_json::to_string(subscription)
        .map_err(|error| unavailable(format!("a subscription cannot be written: {error}")).into())
}

/// Values that one statement is given for what is followed, at most.
const EXTERNALS: usize = 500;

/// The conditions that select together what the query does; one, unless it names very many things.
fn conditions(query: &SubscriptionQuery) -> Vec<(String, Vec<String>)> {
    if query.external_resource_ids.is_empty() {
        return vec![condition(query, &[])];
    }
    query.external_resource_ids.chunks(EXTERNALS).map(|externals| condition(query, externals)).collect()
}

fn condition(query: &SubscriptionQuery, externals: &[String]) -> (String, Vec<String>) {
    let (mut sql, mut params) = (String::from("WHERE 1"), Vec::new());
    for (column, value) in [
        ("id", &query.id),
        ("agent_id", &query.agent_id),
        ("provider_id", &query.provider_id),
        ("resource", &query.resource_id),
        ("thread", &query.thread_id),
    ] {
        if let Some(value) = value {
            params.push(value.clone());
            let _ = write!(sql, " AND {column} = ?{}", params.len());
        }
    }
    if !externals.is_empty() {
        let numbers: Vec<String> = externals
            .iter()
            .map(|id| {
                params.push(id.clone());
                format!("?{}", params.len())
            })
            .collect();
        let _ = write!(sql, " AND external IN ({})", numbers.join(", "));
    }
    (sql, params)
}

/// Those that the query selects and `more` holds of, oldest first.
fn select(connection: &Connection, query: &SubscriptionQuery, more: &str) -> Answer<Vec<ProviderSubscription>> {
    let mut found: Vec<(i64, ProviderSubscription)> = Vec::new();
    for (sql, params) in conditions(query) {
        let sql = format!("SELECT body, id, rowid FROM {TABLE} {sql} {more}");
        let mut statement = connection.prepare_cached(&sql)?;
        let rows = statement.query_map(params_from_iter(&params), |row| Ok((row.get(2)?, read(row)?)))?;
        for row in rows {
            let (number, subscription) = row?;
            found.extend(subscription.map(|subscription| (number, subscription)));
        }
    }
    found.sort_by_key(|(number, _)| *number);
    found.dedup_by_key(|(number, _)| *number);
    Ok(found.into_iter().map(|(_, subscription)| subscription).collect())
}

fn subscribe(connection: &Connection, new: &ProviderSubscription) -> Answer<ProviderSubscription> {
    let key = [&new.provider_id, &new.external_resource_id, &new.agent_id, &new.resource_id, &new.thread_id];
    let held = connection
        .prepare_cached(
            "SELECT body, id FROM bugle_subscriptions
             WHERE provider_id = ?1 AND external = ?2 AND agent_id = ?3 AND resource = ?4 AND thread = ?5",
        )?
        .query_row(key, read)
        .optional()?
        .flatten();
    if let Some(mut held) = held {
        held.merge(new);
        connection
            .prepare_cached("UPDATE bugle_subscriptions SET body = ?2, enabled = ?3 WHERE id = ?1")?
            .execute(params![held.id, text(&held)?, held.enabled])?;
        return Ok(held);
    }
    connection
        .prepare_cached(
            "INSERT OR REPLACE INTO bugle_subscriptions
             (id, provider_id, external, agent_id, resource, thread, enabled, body, poll_token, poll_until)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, '', 0)",
        )?
        .execute(params![new.id, key[0], key[1], key[2], key[3], key[4], new.enabled, text(new)?])?;
    Ok(new.clone())
}

/// The thread's subscriptions go with it (PROV-015); those of another resource stay.
pub(super) fn delete_thread(connection: &Connection, thread: &str, owner: &str) -> Answer<()> {
    connection
        .prepare_cached("DELETE FROM bugle_subscriptions WHERE thread = ?1 AND resource IN ('', ?2)")?
        .execute([thread, owner])?;
    Ok(())
}

pub(super) fn transfer(connection: &Connection, thread: &str, owner: &str, resource: &str) -> Answer<()> {
    let query = SubscriptionQuery { thread_id: Some(thread.to_owned()), ..SubscriptionQuery::default() };
    let own = |held: &ProviderSubscription| rules::belongs(Some(&held.resource_id), Some(owner));
    for mut held in select(connection, &query, "")?.into_iter().filter(own) {
        resource.clone_into(&mut held.resource_id);
        connection
            .prepare_cached("UPDATE OR REPLACE bugle_subscriptions SET resource = ?2, body = ?3 WHERE id = ?1")?
            .execute(params![held.id, resource, text(&held)?])?;
    }
    Ok(())
}

#[async_trait]
impl ProviderSubscriptions for LibSql {
    async fn subscribe(&self, subscription: ProviderSubscription) -> Result<ProviderSubscription, StorageError> {
        self.write(move |connection| subscribe(connection, &subscription)).await
    }

    async fn unsubscribe(&self, query: &SubscriptionQuery) -> Result<usize, StorageError> {
        let conditions = conditions(query);
        self.write(move |connection| {
            let mut ended = 0;
            for (sql, params) in &conditions {
                let sql = format!("DELETE FROM {TABLE} {sql}");
                ended += connection.prepare_cached(&sql)?.execute(params_from_iter(params))?;
            }
            Ok(ended)
        })
        .await
    }

    async fn list(&self, query: &SubscriptionQuery) -> Result<Vec<ProviderSubscription>, StorageError> {
        let query = query.clone();
        self.read(move |connection| select(connection, &query, "")).await
    }

    async fn claim_polls(
        &self,
        query: &SubscriptionQuery,
        token: &str,
        now: Timestamp,
        until: Timestamp,
    ) -> Result<Vec<ProviderSubscription>, StorageError> {
        let (query, token) = (query.clone(), token.to_owned());
        self.write(move |connection| {
            let free = select(connection, &query, &format!("AND enabled AND poll_until <= {}", now.as_millis()))?;
            for subscription in &free {
                connection
                    .prepare_cached("UPDATE bugle_subscriptions SET poll_token = ?2, poll_until = ?3 WHERE id = ?1")?
                    .execute(params![subscription.id, token, until.as_millis()])?;
            }
            Ok(free)
        })
        .await
    }

    async fn end_poll(
        &self,
        id: &str,
        token: &str,
        cursor: Option<&str>,
        next: Timestamp,
    ) -> Result<bool, StorageError> {
        let (id, token, cursor) = (id.to_owned(), token.to_owned(), cursor.map(str::to_owned));
        self.write(move |connection| {
            let held = connection
                .prepare_cached("SELECT body, id FROM bugle_subscriptions WHERE id = ?1 AND poll_token = ?2")?
                .query_row([&id, &token], read)
                .optional()?
                .flatten();
            let Some(mut held) = held else { return Ok(false) };
            if cursor.is_some() {
                held.cursor.clone_from(&cursor);
            }
            connection
                .prepare_cached(
                    "UPDATE bugle_subscriptions SET body = ?2, poll_token = '', poll_until = ?3 WHERE id = ?1",
                )?
                .execute(params![id, text(&held)?, next.as_millis()])?;
            Ok(true)
        })
        .await
    }
}
