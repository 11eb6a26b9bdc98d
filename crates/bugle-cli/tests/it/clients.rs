//! Which agent, thread, resource and server a command means (CLI-050, CLI-051, CLI-055).

use crate::support::Project;

#[test]
fn cli_051_with_several_agents_one_has_to_be_named() {
    let project = Project::with_agent();
    project.file("agents/other.md", "---\nmodel: scripted/scripted\n---\nHelp.\n");
    let server = project.serve(&["serve"]);
    let done = project.run(&["send", "hi"]);
    assert_eq!(done.code, Some(2));
    assert!(done.stderr.contains("there are several agents: helper, other; name one with -a"), "{done:?}");
    assert_eq!(project.run(&["send", "hi", "-a", "other"]).ok().stdout, "ack: hi\n");
    let mut command = project.command(&["send", "hi", "--no-wait"]);
    command.env("BUGLE_AGENT", "helper").env("BUGLE_THREAD", "t2").env("BUGLE_RESOURCE", "bo");
    crate::support::run_with_input(command, "").ok();
    let threads = project.run(&["threads", "--all-resources", "--json"]).ok().json();
    assert!(threads.iter().any(|thread| thread["id"] == "t2" && thread["resourceId"] == "bo"), "{threads:?}");
    drop(server);
    project.file("bugle.toml", "[agents]\ndefault = \"other\"\n");
    let server = project.serve(&["serve"]);
    project.run(&["send", "hi"]).ok();
    // From elsewhere, the server's own default counts.
    let elsewhere = Project::empty();
    elsewhere.run(&["send", "hi", "-s", server.url()]).ok();
}

#[test]
fn cli_050_the_server_is_the_projects_own_unless_said() {
    let one = Project::with_agent();
    let two = Project::with_agent();
    let first = one.serve(&["serve"]);
    let second = two.serve(&["serve"]);
    one.run(&["send", "for one"]).ok();
    two.run(&["send", "for two"]).ok();
    let shown = |project: &Project, url: &str| project.run(&["threads", "show", "main", "-s", url]).ok().stdout;
    assert!(shown(&two, first.url()).contains("for one"));
    assert!(shown(&one, second.url()).contains("for two"));
}

#[test]
fn cli_055_delete_asks_and_without_a_terminal_needs_yes() {
    let project = Project::with_agent();
    let _server = project.serve(&["serve"]);
    project.run(&["send", "hi"]).ok();
    let refused = project.run(&["threads", "delete", "main"]);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(refused.stderr.contains("say --yes"));
    project.run(&["threads", "delete", "main", "--yes"]).ok();
    assert_eq!(project.run(&["threads"]).ok().stdout, "");
    assert_eq!(project.run(&["threads", "delete", "main", "--yes"]).code, Some(3));
}

#[test]
fn threads_of_others_are_not_listed() {
    let project = Project::with_agent();
    let _server = project.serve(&["serve"]);
    project.run(&["send", "hi", "-r", "bo", "-t", "his"]).ok();
    assert_eq!(project.run(&["threads"]).ok().stdout, "");
    assert_eq!(project.run(&["threads", "show", "his"]).code, Some(3));
    let done = project.run(&["send", "hi", "-t", "his"]);
    assert_eq!(done.code, Some(4), "{done:?}");
}
