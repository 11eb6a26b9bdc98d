//! Conversations: steering, the queue, watching, history, restarts.

use serde_json::Value;

use crate::support::{Project, Running, run_with_input};

/// Goes on for half an hour, unless something stops or steers it.
const THINKING: &str = "[[slow-think 100000 20]]";

fn parse(line: &str) -> Value {
    serde_json::from_str(line).unwrap()
}

#[test]
fn cli_053_send_steers_a_running_answer_and_prints_what_follows() {
    let project = Project::with_agent();
    let _server = project.serve(&["serve"]);
    let first = Running::start(project.command(&["send", "--json", THINKING]));
    let accepted = parse(&first.line());
    assert_eq!((accepted["type"].as_str(), accepted["action"].as_str()), (Some("accepted"), Some("wake")));
    first.line_where(|line| line.contains("reasoning-delta"));
    let second = project.run(&["send", "--json", "and [[say the second]]"]).ok();
    let lines = second.json();
    assert_eq!(lines[0]["action"], "deliver");
    assert_eq!(lines[0]["runId"], accepted["runId"]);
    let result = lines.last().unwrap();
    assert_eq!((result["type"].as_str(), result["runId"].as_str()), (Some("result"), accepted["runId"].as_str()));
    assert_eq!(result["text"], "the second", "{result}");
    let first = first.wait().ok();
    assert_eq!(first.json().last().unwrap()["text"], "the second");
}

#[test]
fn cli_053_queued_messages_get_turns_of_their_own_in_order() {
    let project = Project::with_agent();
    let _server = project.serve(&["serve"]);
    let first = Running::start(project.command(&["send", "--json", THINKING]));
    first.line_where(|line| line.contains("reasoning-delta"));
    let queued = project.run(&["queue", "[[say B]]", "--no-wait", "--id", "b"]).ok();
    assert!(queued.stdout.ends_with(" signal b\n"), "{queued:?}");
    project.run(&["queue", "[[say C]]", "--no-wait", "--id", "c"]).ok();
    project.run(&["queue", "[[say D]]", "--no-wait", "--id", "d"]).ok();
    let ids = || -> Vec<String> {
        let list = project.run(&["queue", "--json"]).ok().json();
        list.iter().map(|entry| entry["signalId"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(ids(), ["b", "c", "d"]);
    project.run(&["queue", "--edit", "c", "[[say changed]]"]).ok();
    assert_eq!(project.run(&["queue", "--cancel", "d"]).ok().stdout, "cancelled d\n");
    assert_eq!(project.run(&["queue", "--cancel", "d"]).code, Some(3));
    assert_eq!(project.run(&["queue", "--promote", "unknown"]).code, Some(3));
    assert!(project.run(&["queue", "--promote", "c", "--front"]).ok().stdout.starts_with("moved to the front"));
    assert_eq!(ids(), ["c", "b"]);
    let list = project.run(&["queue", "--list"]).ok().stdout;
    assert_eq!(list, "c  queued     [[say changed]]\nb  queued     [[say B]]\n");
    project.run(&["abort"]).ok();
    assert_eq!(first.wait().code, Some(1));
    // The last one's own follower sees its own answer only.
    let last = project.run(&["queue", "[[say E]]"]).ok();
    assert_eq!(last.stdout, "E\n");
    let shown = project.run(&["threads", "show", "main"]).ok().stdout;
    let answers: Vec<&str> = shown.lines().filter_map(|line| line.strip_prefix("assistant: ")).collect();
    assert!(answers.ends_with(&["changed", "B", "E"]), "{shown}");
}

#[test]
fn cli_054_the_same_id_twice_is_one_message() {
    let project = Project::with_agent();
    let _server = project.serve(&["serve"]);
    assert_eq!(project.run(&["send", "[[say once]]", "--id", "x"]).ok().stdout, "once\n");
    assert_eq!(project.run(&["send", "[[say once]]", "--id", "x"]).ok().stdout, "once\n");
    let other = project.run(&["send", "[[say something else]]", "--id", "x"]);
    assert_eq!(other.code, Some(5), "{other:?}");
    let messages = project.run(&["threads", "show", "main", "--json"]).ok().json();
    assert_eq!(messages.len(), 2, "{messages:?}");
}

#[test]
fn cli_061_every_command_speaks_json_lines() {
    let project = Project::with_agent();
    let _server = project.serve(&["serve"]);
    let send = project.run(&["send", "--json", "[[think hm ;; say hello]]", "--attr", "name=Ann"]).ok().json();
    let names = |line: &Value| line.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&send[0]), ["type", "action", "runId", "signalId"]);
    let result = send.last().unwrap();
    assert_eq!(names(result), ["type", "runId", "finishReason", "text", "usage"]);
    assert_eq!((result["finishReason"].as_str(), result["text"].as_str()), (Some("stop"), Some("hello")));
    for chunk in &send[1..send.len() - 1] {
        assert!(chunk["eventId"].as_str().unwrap().contains('-'), "{chunk}");
        assert!(chunk["type"].is_string() && chunk["runId"] == send[0]["runId"], "{chunk}");
    }
    assert!(send.iter().any(|line| line["type"] == "reasoning-delta"));
    let threads = project.run(&["threads", "--json"]).ok().json();
    assert_eq!(
        (threads.len(), threads[0]["id"].as_str(), threads[0]["resourceId"].as_str()),
        (1, Some("main"), Some("ann"))
    );
    let queued = project.run(&["queue", "--json", "[[say q]]"]).ok().json();
    assert_eq!((queued[0]["type"].as_str(), queued.last().unwrap()["text"].as_str()), (Some("accepted"), Some("q")));
    assert_eq!(project.run(&["queue", "--json"]).ok().stdout, "");
    let deleted = project.run(&["threads", "delete", "main", "--yes", "--json"]).ok().json();
    assert_eq!(deleted, [serde_json::json!({"deleted": "main"})]);
    assert_eq!(project.run(&["threads", "show", "main"]).code, Some(3));
}

#[test]
fn cli_070_a_run_that_fails_or_is_aborted_is_code_1() {
    let project = Project::with_agent();
    let _server = project.serve(&["serve"]);
    let failed = project.run(&["send", "[[fail 400 no such thing]]"]);
    assert_eq!(failed.code, Some(1), "{failed:?}");
    assert!(failed.stderr.contains("error: the run failed") && failed.stderr.contains("no such thing"), "{failed:?}");
    let send = Running::start(project.command(&["send", "--json", "[[slow 2000 20]]"]));
    send.line_where(|line| line.contains("text-delta"));
    project.run(&["abort"]).ok();
    let done = send.wait();
    assert_eq!(done.code, Some(1), "{done:?}");
    assert!(done.stderr.contains("the run was aborted"), "{done:?}");
}

#[test]
fn sig_313_abort_means_the_run_it_has_seen_and_no_other() {
    let project = Project::with_agent();
    let _server = project.serve(&["serve"]);
    let send = Running::start(project.command(&["send", "--json", THINKING]));
    let run = parse(&send.line())["runId"].clone();
    send.line_where(|line| line.contains("reasoning-delta"));
    let other = project.run(&["abort", "--run", "another", "--clear"]);
    assert_eq!((other.code, other.stdout.as_str()), (Some(1), ""), "{other:?}");
    send.line_where(|line| line.contains("reasoning-delta"));
    let stopped = project.run(&["abort", "--json"]).ok().json();
    assert_eq!(stopped, [serde_json::json!({"aborted": true, "runId": run})]);
    assert_eq!(send.wait().code, Some(1));
}

#[test]
fn watch_shows_runs_steering_and_the_queue_as_they_happen() {
    let project = Project::with_agent();
    let _server = project.serve(&["serve"]);
    let watch = Running::start(project.command(&["watch", "--runs", "2"]));
    // It thinks for as long as it is let, and says so all the time.
    let text = THINKING;
    let first = Running::start(project.command(&["send", "--json", text, "--attr", "name=Ann"]));
    assert_eq!(watch.line(), format!("> Ann: {text}"));
    assert!(watch.line().starts_with("-- helper runs ("));
    first.line_where(|line| line.contains("reasoning-delta"));
    project.run(&["queue", "[[say Q]]", "--no-wait"]).ok();
    assert!(watch.line().starts_with("t1 t2 "));
    assert_eq!(watch.line(), "   queue: 1 waiting");
    project.run(&["send", text, "--attr", "name=Bo", "--no-wait"]).ok();
    watch.line_where(|line| line == format!("» steered Bo: {text}"));
    project.run(&["abort"]).ok();
    watch.line_where(|line| line == "-- aborted");
    drop(first);
    watch.line_where(|line| line == "> user: [[say Q]]");
    watch.line_where(|line| line == "Q");
    watch.line_where(|line| line.starts_with("-- done (stop"));
    assert_eq!(watch.wait().code, Some(0));
}

#[test]
fn a_restart_keeps_the_conversation_and_the_next_prompt_knows_it() {
    let project = Project::with_agent();
    let server = project.serve(&["serve"]);
    project.run(&["send", "My name is Ann."]).ok();
    assert_eq!(server.stop().code, Some(0));
    let _server = project.serve(&["serve"]);
    let shown = project.run(&["threads", "show", "main"]).ok().stdout;
    assert_eq!(shown, "user: My name is Ann.\nassistant: ack: My name is Ann.\n");
    let dump = project.run(&["send", "[[dump]]"]).ok().stdout;
    assert!(dump.contains("My name is Ann."), "{dump}");
}

#[test]
fn cli_056_watch_comes_back_after_a_restart_and_misses_nothing() {
    let project = Project::with_agent();
    let server = project.serve(&["serve"]);
    let address = server.url().strip_prefix("http://").unwrap().to_owned();
    let mut command = project.command(&["watch", "--json"]);
    command.env("BUGLE_SERVER", server.url());
    let watch = Running::start(command);
    // A run that lasts is seen however late the subscription comes.
    project.run(&["send", THINKING, "--no-wait"]).ok();
    watch.line_where(|line| line.contains("reasoning-delta"));
    project.run(&["abort"]).ok();
    watch.line_where(|line| line.contains("\"type\":\"abort\""));
    assert_eq!(server.stop().code, Some(0));
    let again = Running::start(project.command(&["serve", "--listen", &address, "--json"]));
    again.line();
    project.run(&["send", "[[say after]]"]).ok();
    let after = watch.line_where(|line| line.contains("\"text\":\"after\"") || line.contains("\"type\":\"gap\""));
    assert!(after.contains("after"), "{after}");
    watch.signal("INT");
    let done = watch.wait();
    assert_eq!(done.code, Some(130));
    assert_eq!(done.stderr.matches("the connection was lost").count(), 1, "{done:?}");
}

#[test]
fn cli_052_text_comes_from_standard_input() {
    let project = Project::with_agent();
    let _server = project.serve(&["serve"]);
    assert_eq!(run_with_input(project.command(&["send", "-"]), "[[say from a pipe]]\n").ok().stdout, "from a pipe\n");
    assert_eq!(run_with_input(project.command(&["send"]), "[[say without a dash]]\n").ok().stdout, "without a dash\n");
}

#[test]
fn signals_and_routing_reach_the_agent() {
    let project = Project::with_agent();
    let _server = project.serve(&["serve"]);
    let stored =
        project.run(&["send", "be brief", "--signal", "reactive", "--tag", "style", "--if-idle", "persist"]).ok();
    assert_eq!(stored.stderr, "persist: stored; no run answers it\n");
    assert_eq!(project.run(&["send", "x", "--if-idle", "discard"]).ok().stderr, "discard: dropped, as asked\n");
    let dump = project.run(&["send", "[[dump]]"]).ok().stdout;
    assert!(dump.contains("<style>be brief</style>"), "{dump}");
    let wrong = project.run(&["send", "x", "--signal", "reactive", "--tag", "no good"]);
    assert_eq!(wrong.code, Some(2), "{wrong:?}");
}

#[test]
fn cli_073_kill_9_with_queued_input_loses_nothing_and_answers_nothing_twice() {
    let project = Project::with_agent();
    let server = project.serve(&["serve"]);
    let first = Running::start(project.command(&["send", "--json", "[[slow 100 20 ;; say A]]"]));
    first.line_where(|line| line.contains("text-delta"));
    project.run(&["queue", "[[say B]]", "--no-wait"]).ok();
    project.run(&["queue", "[[say C]]", "--no-wait"]).ok();
    server.running.signal("KILL");
    assert_eq!(server.running.wait().code, None);
    let _server = project.serve(&["serve"]);
    // Turns are in order, so when this one is over the others are.
    assert_eq!(project.run(&["queue", "[[say D]]"]).ok().stdout, "D\n");
    let shown = project.run(&["threads", "show", "main"]).ok().stdout;
    let count = |text: &str| shown.lines().filter(|line| *line == text).count();
    for letter in ["B", "C", "D"] {
        assert_eq!(count(&format!("user: [[say {letter}]]")), 1, "{shown}");
        assert_eq!(count(&format!("assistant: {letter}")), 1, "{shown}");
    }
    let whole = shown.lines().filter(|line| line.starts_with("assistant: w1 ") && line.ends_with(" w100 A")).count();
    assert_eq!((count("user: [[slow 100 20 ;; say A]]"), whole), (1, 1), "{shown}");
}
