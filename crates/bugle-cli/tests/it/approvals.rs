//! Calls that wait for a person: listed, approved, declined, from scripts and from a terminal (CLI-053, CLI-055).

use std::{
    fs::File,
    io::{Read as _, Write as _},
    os::fd::OwnedFd,
    process::Stdio,
};

use crate::support::{Project, Running};

/// A run of the demo agent that waits for approval.
const NOTE: &str = "[[call write-note {\"text\":\"one\"}]] [[say noted]]";

fn notes(project: &Project) -> String {
    std::fs::read_to_string(project.path().join(".bugle/notes.txt")).unwrap_or_default()
}

#[test]
fn cli_053_a_run_that_waits_is_code_5_with_the_command_that_answers_it() {
    let project = Project::empty();
    let _server = project.serve(&["dev"]);
    let sent = project.run(&["send", NOTE, "-t", "t1"]);
    assert_eq!(sent.code, Some(5), "{sent:?}");
    assert!(sent.stderr.contains("? write-note {\"text\":\"one\"} waits for approval"), "{sent:?}");
    let hint = "error: write-note waits for a person's approval; answer with: bugle approve call_1 -t t1\n";
    assert!(sent.stderr.ends_with(hint), "{sent:?}");
    assert_eq!(notes(&project), "", "nothing was written");
    // What comes meanwhile waits too, and its sender is told.
    let meanwhile = project.run(&["send", "hello", "-t", "t1"]);
    assert_eq!(meanwhile.code, Some(5), "{meanwhile:?}");
    assert!(meanwhile.stderr.contains("waits for a person (approval)"), "{meanwhile:?}");
    let done = project.run(&["approve", "call_1", "-t", "t1", "--wait"]).ok();
    assert!(done.stdout.contains("ack: hello"), "{done:?}");
    assert_eq!(notes(&project), "one\n");
}

#[test]
fn cli_055_the_only_call_is_meant_and_several_need_a_name() {
    let project = Project::empty();
    let _server = project.serve(&["dev"]);
    let nothing = project.run(&["approve"]);
    assert_eq!(nothing.code, Some(3), "{nothing:?}");
    assert!(nothing.stderr.contains("nothing waits for an answer on thread main"), "{nothing:?}");
    assert_eq!(project.run(&["approve", "--list"]).ok().stdout, "");
    assert_eq!(project.run(&["send", NOTE]).code, Some(5));
    let done = project.run(&["approve"]).ok();
    assert!(done.stdout.is_empty() && done.stderr.starts_with("approved call_1 of run "), "{done:?}");
    // The run goes on by itself; its answer is in the thread.
    assert_eq!(project.run(&["queue", "[[say next]]"]).ok().stdout, "next\n");
    assert_eq!(notes(&project), "one\n");

    let two = "[[call write-note {\"text\":\"two\"} ;; call write-note {\"text\":\"three\"}]] [[say both]]";
    assert_eq!(project.run(&["send", two]).code, Some(5));
    let list = project.run(&["approve", "--list", "--json"]).ok().json();
    assert!(!list.is_empty(), "{list:?}");
    for line in &list {
        assert_eq!((line["threadId"].as_str(), line["requiresApproval"].as_bool()), (Some("main"), Some(true)));
        assert!(line["runId"].is_string() && line["suspendedAt"].is_string(), "{line}");
    }
    if list.len() > 1 {
        let several = project.run(&["decline"]);
        assert_eq!(several.code, Some(2), "{several:?}");
        assert!(several.stderr.contains("several calls wait on thread main"), "{several:?}");
    }
    let first = list[0]["toolCallId"].as_str().unwrap().to_owned();
    let declined = project.run(&["decline", &first, "--reason", "not today", "--json"]).ok().json();
    assert_eq!((declined[0]["accepted"].as_bool(), declined[0]["toolCallId"].as_str()), (Some(true), Some(&*first)));
    let again = project.run(&["decline", &first]);
    assert_eq!(again.code, Some(5), "{again:?}");
    let unknown = project.run(&["approve", "call_99"]);
    assert_eq!(unknown.code, Some(3), "{unknown:?}");
    let done = project.run(&["approve", "--wait"]).ok();
    assert_eq!(done.stdout, "both\n", "{done:?}");
    assert_eq!(notes(&project), "one\nthree\n");
    assert_eq!(project.run(&["approve"]).code, Some(3));
}

#[test]
fn cli_061_approve_speaks_json_lines_and_may_name_the_run() {
    let project = Project::empty();
    let _server = project.serve(&["dev"]);
    let sent = project.run(&["send", "--json", NOTE, "-t", "far"]);
    assert_eq!(sent.code, Some(5));
    let run = sent.json()[0]["runId"].as_str().unwrap().to_owned();
    assert_eq!(project.run(&["approve", "--run", "no-such-run"]).code, Some(3));
    // From another thread, by the run.
    let done = project.run(&["approve", "--run", &run, "--wait", "--json"]).ok().json();
    assert_eq!(done[0]["accepted"], true);
    assert!(done.iter().any(|line| line["type"] == "tool-result" && line["eventId"].is_string()), "{done:?}");
    let result = done.last().unwrap();
    assert_eq!((result["type"].as_str(), result["text"].as_str()), (Some("result"), Some("noted")));
    let wrong = project.run(&["approve", "--data", "{no json"]);
    assert_eq!(wrong.code, Some(2), "{wrong:?}");
}

#[test]
fn loop_117_a_call_is_approved_after_the_server_was_killed() {
    let project = Project::empty();
    let server = project.serve(&["dev"]);
    assert_eq!(project.run(&["send", NOTE]).code, Some(5));
    server.running.signal("KILL");
    assert_eq!(server.running.wait().code, None);
    let _server = project.serve(&["dev"]);
    let done = project.run(&["approve", "--wait"]).ok();
    assert_eq!((done.stdout.as_str(), notes(&project).as_str()), ("noted\n", "one\n"));
}

/// A terminal: our end, and the one a process sees.
fn terminal() -> (File, OwnedFd) {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap();
    let slave = File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
    (File::from(master), slave.into())
}

#[test]
fn watch_asks_a_person_at_a_terminal_and_sends_the_answer() {
    let project = Project::empty();
    let _server = project.serve(&["dev"]);
    // It waits since before anybody watched.
    assert_eq!(project.run(&["send", NOTE]).code, Some(5));
    let (mut keyboard, screen) = terminal();
    let mut command = project.command(&["watch", "--runs", "2"]);
    command.stdin(Stdio::from(screen.try_clone().unwrap())).stderr(Stdio::from(screen));
    let watch = Running::start(command);
    let mut seen = String::new();
    let mut until = |keyboard: &mut File, text: &str| {
        let mut piece = [0_u8; 1024];
        while !seen.contains(text) {
            let count = keyboard.read(&mut piece).unwrap();
            assert!(count > 0, "{seen}");
            seen.push_str(&String::from_utf8_lossy(&piece[..count]));
        }
        seen.clear();
    };
    until(&mut keyboard, "? approve write-note: y, or n and why");
    keyboard.write_all(b"y\n").unwrap();
    until(&mut keyboard, "approved write-note");
    watch.line_where(|line| line.contains("write-note -> {\"written\":true}"));
    watch.line_where(|line| line == "noted");
    watch.line_where(|line| line.starts_with("-- done (stop"));
    assert_eq!(notes(&project), "one\n");
    assert_eq!(project.run(&["send", NOTE]).code, Some(5));
    until(&mut keyboard, "? approve write-note");
    keyboard.write_all(b"n not now\n").unwrap();
    watch.line_where(|line| line.contains("write-note was declined"));
    assert_eq!(watch.wait().code, Some(0));
    assert_eq!(notes(&project), "one\n");
}

#[test]
fn watch_that_only_reads_asks_nothing() {
    let project = Project::empty();
    let _server = project.serve(&["dev"]);
    let watch = Running::start(project.command(&["watch", "--read-only"]));
    assert_eq!(project.run(&["send", NOTE]).code, Some(5));
    watch.line_where(|line| line.contains("write-note {\"text\":\"one\"} waits for approval"));
    project.run(&["approve"]).ok();
    watch.line_where(|line| line == "noted");
    watch.signal("INT");
    let done = watch.wait();
    assert!(!done.stderr.contains("? approve"), "{done:?}");
}
