//! Every layer, every error, every place.

use super::*;

fn env(pairs: &[(&str, &str)]) -> Env {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn load(toml: &str, pairs: &[(&str, &str)]) -> Result<Settings, Vec<String>> {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("bugle.toml"), toml).unwrap();
    Settings::load(directory.path(), None, &env(pairs))
        .map_err(|problems| problems.iter().map(ToString::to_string).collect())
}

#[test]
fn cli_002_every_default_is_right_and_every_key_has_a_variable() {
    let settings = load("", &[]).unwrap();
    for key in table::TABLE {
        assert_eq!(settings.get(key.path).is_some(), key.default.is_some(), "{}", key.path);
        if let Some(default) = key.default {
            let value = key.kind.parse_text(default).unwrap();
            assert!(key.check_support(&value).is_ok(), "{}", key.path);
        }
    }
    assert_eq!(settings.text("server.listen"), Some("127.0.0.1:4111"));
    assert_eq!(settings.number("server.max-body"), Some(4_718_592));
    assert_eq!(table::find("server.max-body").unwrap().variable().unwrap(), "BUGLE_SERVER_MAX_BODY");
}

#[test]
fn cli_002_flag_wins_over_variable_over_project_over_user_over_default() {
    let home = tempfile::tempdir().unwrap();
    std::fs::create_dir(home.path().join("bugle")).unwrap();
    std::fs::write(
        home.path().join("bugle/bugle.toml"),
        "[server]\nkeep-alive = \"1s\"\nmax-body = 2048\nlisten = \"127.0.0.1:1\"\nprefix = \"/user\"\n",
    )
    .unwrap();
    let toml = "[server]\nkeep-alive = \"2s\"\nmax-body = \"1MiB\"\nlisten = \"127.0.0.1:2\"\n";
    let config_home = home.path().to_str().unwrap();
    let variables =
        [("XDG_CONFIG_HOME", config_home), ("BUGLE_SERVER_LISTEN", "127.0.0.1:3"), ("BUGLE_SERVER_KEEP_ALIVE", "3s")];
    let mut settings = load(toml, &variables).unwrap();
    settings.set_flag("server.listen", "--listen", "127.0.0.1:4").unwrap();
    assert_eq!(settings.text("server.listen"), Some("127.0.0.1:4"));
    assert_eq!(settings.duration("server.keep-alive"), Some(Duration::from_secs(3)));
    assert_eq!(settings.number("server.max-body"), Some(1 << 20));
    assert_eq!(settings.text("server.prefix"), Some("/user"));
    assert_eq!(settings.duration("server.drain-timeout"), Some(Duration::from_secs(25)));
    let origins: Vec<String> = ["server.listen", "server.keep-alive", "server.max-body", "server.drain-timeout"]
        .map(|path| settings.get(path).unwrap().origin.to_string())
        .into();
    assert_eq!(origins, ["--listen", "BUGLE_SERVER_KEEP_ALIVE", "bugle.toml:3:1", "default"]);
}

#[test]
fn cli_003_all_errors_are_shown_at_once_each_with_its_place() {
    let toml = "[lease]\ntll = \"15s\"\n\n[server]\n  keep-alive = true\n  max-body = \"1B\"\n  listen = \"4111\"\n[storage]\nsynchronous = \"ful\"\n[servers]\nx = 1\n";
    let problems = load(toml, &[("BUGLE_LOG_FORMAT", "xml")]).unwrap_err();
    assert_eq!(
        problems,
        [
            "bugle.toml:2:1: lease.tll: unknown key; did you mean \"ttl\"?",
            "bugle.toml:5:3: server.keep-alive: must be a duration such as \"15s\", or milliseconds",
            "bugle.toml:6:3: server.max-body: 1 is out of range; 1KiB to 1GiB is possible",
            "bugle.toml:7:3: server.listen: \"4111\" is no address; write HOST:PORT, such as 127.0.0.1:4111",
            "bugle.toml:9:1: storage.synchronous: \"ful\" is not one of normal, full; did you mean \"full\"?",
            "bugle.toml:10:2: servers: unknown key; did you mean \"server\"?",
            "BUGLE_LOG_FORMAT: \"xml\" is not one of auto, text, json",
        ]
    );
}

#[test]
fn cli_003_a_file_that_is_no_toml_is_an_error_with_its_place() {
    let problems = load("[server\nlisten = 1\n", &[]).unwrap_err();
    assert!(problems[0].starts_with("bugle.toml:1:"), "{problems:?}");
}

#[test]
fn what_this_version_lacks_is_refused_and_never_ignored() {
    for (toml, said) in [
        ("[otel]\nendpoint = \"http://x\"", "otel.endpoint is not in this version; remove it"),
        ("[[webhooks]]\nid = \"gh\"", "webhooks.agent: missing"),
        (
            "[[webhooks]]\nid = \"gh\"\nagent = \"a\"\npreset = \"gitlab\"",
            "must be generic, github or standard-webhooks",
        ),
        ("[[webhooks]]\nid = \"gh\"\nagent = \"a\"\nkind = \"event\"", "is no JSON pointer; it begins with /"),
        (
            "[[webhooks]]\nid = \"gh\"\nagent = \"a\"\nsubscriptions = [{ resource = \"r\", thread = \" \", external-id = \"x\" }]",
            "webhooks.subscriptions.thread: must not be blank",
        ),
        ("[background-tasks]\nenabled = true", "background-tasks.enabled = true is not in this version; only false is"),
        ("[auth]\nmode = \"jwt\"", "auth.mode = jwt is not in this version; only none or tokens is"),
        ("[auth.jwt]\nsecret = \"env:X\"", "auth.jwt.secret is not in this version; remove it"),
        ("[pubsub]\nurl = \"redis://h\"", "pubsub.url = redis://h is not in this version; only memory: is"),
        (
            "[storage]\nretention = { messages = \"7d\" }",
            "storage.retention = {1 entries} is not in this version; only {} is",
        ),
        (
            "[mcp]\nfiles = [\"tools.json\"]",
            "mcp.files = [tools.json] is not in this version; only [] or [.mcp.json] is",
        ),
        ("[models.providers.x]\nheaders = {}", "models.providers.x.headers is not in this version; remove it"),
    ] {
        let problems = load(toml, &[]).unwrap_err();
        assert!(problems.len() == 1 && problems[0].ends_with(said), "{toml}: {problems:?}");
    }
    let theirs = [("MASTRA_AGENT_THREAD_LEASE_TTL_MS", "5000")];
    assert_eq!(load("", &theirs).unwrap().duration("lease.ttl"), Some(Duration::from_secs(5)));
    assert!(load("[lease]\nttl = \"15s\"\n[cross-agent]\nenabled = false\n", &[]).is_ok());
}

#[test]
fn cli_040_an_unknown_variable_is_a_warning_with_the_nearest_known_one() {
    let settings = load("", &[("BUGLE_SERVER_LISTN", "x"), ("BUGLE_TOKEN", "t"), ("BUGLE_EMPTY", "")]).unwrap();
    assert_eq!(settings.warnings, ["BUGLE_SERVER_LISTN is no setting; did you mean BUGLE_SERVER_LISTEN?"]);
}

#[test]
fn host_and_port_count_where_no_own_variable_is_given() {
    let listen = |pairs: &[(&str, &str)]| {
        load("[server]\nlisten = \"127.0.0.1:9\"", pairs).unwrap().text("server.listen").unwrap().to_owned()
    };
    assert_eq!(listen(&[("PORT", "80")]), "127.0.0.1:80");
    assert_eq!(listen(&[("HOST", "::1"), ("PORT", "80")]), "[::1]:80");
    assert_eq!(listen(&[("PORT", "80"), ("BUGLE_SERVER_LISTEN", "127.0.0.1:81")]), "127.0.0.1:81");
    assert!(load("", &[("PORT", "many")]).is_err());
}

#[test]
fn cli_004_secrets_come_from_variables_and_files_and_are_never_shown() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("key"), "from-file\n").unwrap();
    let env = env(&[("KEY", "from-variable")]);
    let of =
        |raw: &str| secret(&SecretString::from(raw), directory.path(), &env).map(|it| it.expose_secret().to_owned());
    assert_eq!(of("env:KEY").unwrap(), "from-variable");
    assert_eq!(of("file:key").unwrap(), "from-file");
    assert_eq!(of("literal").unwrap(), "literal");
    assert_eq!(of("env:NONE").unwrap_err(), "the variable NONE is not set");
    assert!(of("file:none").unwrap_err().starts_with("the file none cannot be read"));
    let toml = "[[auth.tokens]]\ntoken = \"super-secret-token\"\nuser = \"alice\"\n[models.providers.x]\napi-key = \"sk-literal\"\n";
    let settings = load(toml, &[]).unwrap();
    let shown = format!("{:?} {settings:?}", settings.effective());
    assert!(!shown.contains("super-secret") && !shown.contains("sk-literal"), "{shown}");
    assert!(settings.tokens[0].allow);
}

#[test]
fn cli_003_rows_of_tokens_are_checked() {
    let toml = "[[auth.tokens]]\ntokn = \"x\"\nuser = \"a\"\n[[auth.tokens]]\ntoken = 5\nuser = \"b\"\n";
    let problems = load(toml, &[]).unwrap_err();
    assert_eq!(
        problems,
        [
            "bugle.toml:1:1: auth.tokens.token: missing",
            "bugle.toml:2:1: auth.tokens.tokn: unknown key; did you mean \"token\"?",
            "bugle.toml:5:9: auth.tokens.token: must be a text",
        ]
    );
}

#[test]
fn notif_070_dispatch_is_set_by_file_and_environment() {
    let toml = "[notifications]\ndispatch = false\nbatch-size = 7\ncron = \"*/5 * * * *\"\n";
    let settings = load(toml, &[("BUGLE_NOTIFICATIONS_BATCH_SIZE", "9")]).unwrap();
    assert!(!settings.flag("notifications.dispatch"));
    assert_eq!(settings.number("notifications.batch-size"), Some(9));
    assert_eq!(settings.text("notifications.cron"), Some("*/5 * * * *"));
    assert_eq!(
        load("[notifications]\nbatch-size = 0\ncron = \"0 25 * * *\"\n", &[]).unwrap_err(),
        [
            "bugle.toml:2:1: notifications.batch-size: 0 is out of range; 1 to 10000 is possible",
            "bugle.toml:3:1: notifications.cron: hour: 25 is not from 0 to 23",
        ]
    );
    assert_eq!(
        load("[notifications]\ncron = 5\n", &[]).unwrap_err(),
        ["bugle.toml:2:1: notifications.cron: must be a cron expression such as \"*/1 * * * *\""]
    );
    assert_eq!(
        load("[notifications]\ncron = \"@hourly\"\nsafety-poll = \"5m\"\n", &[]).unwrap_err(),
        ["bugle.toml:2:1: notifications.cron: safety-poll says how often, too; keep one of the two"]
    );
}
