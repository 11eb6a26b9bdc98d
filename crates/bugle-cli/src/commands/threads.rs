//! `bugle threads`: lists, transcripts, deletion.

use std::io::{BufRead as _, IsTerminal as _, Write as _};

use bugle::json::json;
use bugle_client::ThreadQuery;

use super::{Session, connect::Connection};
use crate::{
    args::{Threads, ThreadsAction},
    exit::Failure,
    out::Style,
    render::transcript,
    text::{clean, short},
};

/// Messages per request of a transcript.
const PAGE: u32 = 100;

pub(super) async fn run(args: Threads, session: &Session) -> Result<u8, Failure> {
    let connection = Connection::new(&args.target, session)?;
    let resource = (!args.all_resources).then_some(connection.resource.as_str());
    match &args.action {
        None => list(&args, &connection, resource, session).await,
        Some(ThreadsAction::Show { id }) => show(id, &connection, resource, session).await,
        Some(ThreadsAction::Delete { id, yes }) => delete(id, *yes, &connection, resource, session).await,
    }
}

async fn list(
    args: &Threads,
    connection: &Connection,
    resource: Option<&str>,
    session: &Session,
) -> Result<u8, Failure> {
    let query = ThreadQuery { resource_id: resource.map(str::to_owned), page: args.page, per_page: Some(args.limit) };
    let page = connection.client.threads(&query).await?;
    let out = session.out;
    for thread in &page.items {
        if out.json {
            out.json_line(&json!(thread));
            continue;
        }
        let owner = if args.all_resources { format!("  {}", clean(&thread.resource_id)) } else { String::new() };
        let title = if thread.title.is_empty() { String::new() } else { format!("  {}", short(&thread.title, 60)) };
        let at = out.paint(Style::Dim, &thread.updated_at.to_string());
        out.line(&format!("{}  {at}{owner}{title}", clean(&thread.id)));
    }
    if !out.json && page.has_more {
        out.note(Style::Dim, &format!("{} in all; the next ones: --page {}", page.total, args.page + 1));
    }
    Ok(0)
}

async fn show(id: &str, connection: &Connection, resource: Option<&str>, session: &Session) -> Result<u8, Failure> {
    connection.client.thread(id, resource).await?;
    // Page 0 is the newest; a transcript begins with the oldest.
    let mut pages = Vec::new();
    for number in 0.. {
        let page = connection.client.messages(id, resource, number, PAGE).await?;
        let has_more = page.has_more;
        pages.push(page.items);
        if !has_more {
            break;
        }
    }
    for message in pages.iter().rev().flatten() {
        if session.out.json {
            session.out.json_line(&json!(message));
        } else {
            session.out.print(&transcript(message, session.out));
        }
    }
    Ok(0)
}

async fn delete(
    id: &str,
    yes: bool,
    connection: &Connection,
    resource: Option<&str>,
    session: &Session,
) -> Result<u8, Failure> {
    connection.client.thread(id, resource).await?;
    if !yes && !asked(&format!("delete thread {id} and all its messages?")).await? {
        return Err(Failure::new(crate::exit::NO, "nothing was deleted"));
    }
    let agent = connection.agent().await?;
    connection.client.delete_thread(id, &agent, resource).await?;
    if session.out.json {
        session.out.json_line(&json!({"deleted": id}));
    } else {
        session.out.line(&format!("deleted {id}"));
    }
    Ok(0)
}

/// Asks on a terminal; elsewhere the flag is needed (CLI-052).
async fn asked(question: &str) -> Result<bool, Failure> {
    if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
        return Err(Failure::usage("deleting asks first, and there is no terminal").hint("say --yes"));
    }
    let question = format!("{} [y/N] ", clean(question));
    let answer = tokio::task::spawn_blocking(move || {
        let mut answer = String::new();
        std::io::stderr().write_all(question.as_bytes())?;
        std::io::stdin().lock().read_line(&mut answer)?;
        std::io::Result::Ok(answer)
    });
    match answer.await {
        Ok(Ok(answer)) => Ok(matches!(answer.trim(), "y" | "Y" | "yes")),
        _ => Ok(false),
    }
}
