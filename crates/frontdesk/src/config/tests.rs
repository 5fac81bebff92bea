use frontdesk_core::agent::Asks;

use frontdesk_core::fold::ApprovalMode;

use super::*;

const EXE: &str = "/usr/bin/frontdesk";

fn with_path(text: &str, on_path: &[&str]) -> Result<(Config, Vec<Warning>), ConfigError> {
    let find = |name: &str| {
        let there = on_path.contains(&name) || Path::new(name).is_absolute();
        there.then(|| PathBuf::from("/usr/bin").join(name))
    };
    Config::parse(text, Path::new("/etc/c.toml"), find, Path::new(EXE))
}

fn good(text: &str) -> Config {
    let (config, warnings) = with_path(text, &[]).unwrap();
    assert_eq!(warnings, [], "{text}");
    config
}

fn warned(text: &str) -> Vec<String> {
    with_path(text, &[]).unwrap().1.iter().map(ToString::to_string).collect()
}

fn failed(text: &str) -> String {
    match with_path(text, &[]) {
        Ok(_) => panic!("accepted: {text}"),
        Err(error) => error.to_string(),
    }
}

fn names(config: &Config) -> Vec<&str> {
    config.agents.iter().map(|agent| agent.name.as_str()).collect()
}

#[test]
fn without_a_file_there_is_demo() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.toml");
    let (config, warnings) = Config::load(&path, |_| None, Path::new(EXE)).unwrap();
    assert_eq!(warnings, []);
    assert_eq!(names(&config), ["demo"]);
    assert_eq!(config.default_agent, "demo");
    assert_eq!(config.limits, Limits::default());
    assert_eq!(config.status_words, StatusWords::Active);
    let demo = config.agent("demo").unwrap();
    assert_eq!(demo.command, [EXE, "demo-agent"]);
    assert_eq!(demo.known.unwrap().kind, "demo");
    assert_eq!((demo.sessions_per_instance, demo.idle_unload_s), (1, 1_800));
    let named = Config::load_named(&path, |_| None, Path::new(EXE)).unwrap_err();
    assert!(named.to_string().starts_with("failed to read "), "{named}");
}

#[test]
fn demo_is_there_whatever_this_program_is_called() {
    let (config, _) =
        Config::parse("", Path::new("c"), |_| None, Path::new("/t/it-0123abc")).unwrap();
    assert_eq!(config.agent("demo").unwrap().known.unwrap().kind, "demo");
}

#[test]
fn the_file_is_read_from_disk_and_never_replaced_by_defaults() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.toml");
    let load = || Config::load(&path, |_| None, Path::new(EXE));
    std::fs::write(&path, "status_words = \"open\"").unwrap();
    assert_eq!(load().unwrap().0.status_words.as_str(), "open");
    std::fs::write(&path, "status_words = \"loud\"").unwrap();
    assert!(matches!(load(), Err(ConfigError::Parse { line: 1, .. })));
    std::fs::write(&path, [0x61, 0xff]).unwrap();
    assert!(matches!(load(), Err(ConfigError::Read { .. })), "not UTF-8");
    std::fs::write(&path, vec![b'#'; CONFIG_BYTES as usize + 1]).unwrap();
    assert!(matches!(load(), Err(ConfigError::TooLong(_))));
    std::fs::write(&path, vec![b'#'; CONFIG_BYTES as usize]).unwrap();
    assert!(load().is_ok(), "at the limit");
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    assert!(matches!(load(), Err(ConfigError::Read { .. })), "a folder");
}

#[test]
fn the_order_of_agents_gives_the_default() {
    let on_path = ["codex-acp", "claude-agent-acp", "gemini"];
    let text = "[agents.zeta]\nurls=['ws://h/']\n[agents.alpha]\nurls=['ws://h/']\n";
    let (config, _) = with_path(text, &on_path).unwrap();
    assert_eq!(names(&config), ["zeta", "alpha", "claude", "codex", "gemini", "demo"]);
    assert_eq!(config.default_agent, "zeta");
    let (config, _) = with_path("", &on_path).unwrap();
    assert_eq!(config.default_agent, "claude");
    assert_eq!(config.agent("gemini").unwrap().command, ["gemini", "--acp"]);
    let (config, _) = with_path("[agents.demo]\nidle_unload_s = 5", &["opencode"]).unwrap();
    assert_eq!(config.default_agent, "opencode", "demo is the last choice");
    let (config, _) = with_path("default_agent = 'demo'", &on_path).unwrap();
    assert_eq!(config.default_agent, "demo");
}

#[test]
fn an_entry_replaces_the_agent_of_its_name() {
    let text = "[agents.codex]\ncommand = ['/opt/mine']\n[agents.demo]\ncommand = ['/opt/other']";
    let (config, warnings) = with_path(text, &["codex-acp"]).unwrap();
    assert_eq!(warnings, []);
    assert_eq!(names(&config), ["codex", "demo"]);
    assert_eq!(config.agent("codex").unwrap().command, ["/opt/mine"]);
    assert_eq!(config.agent("codex").unwrap().known.unwrap().kind, "codex", "a wrapper");
    assert_eq!(config.agent("demo").unwrap().command, ["/opt/other"]);
}

#[test]
fn an_entry_may_only_adjust_a_known_agent() {
    let text = "idle_unload_s = 60\nsessions_per_instance = 2\n[agents.gemini]\nidle_unload_s = 7";
    let (config, warnings) = with_path(text, &["gemini"]).unwrap();
    assert_eq!(warnings, []);
    let gemini = config.agent("gemini").unwrap();
    assert_eq!(gemini.command, ["gemini", "--acp"]);
    assert_eq!((gemini.sessions_per_instance, gemini.idle_unload_s), (2, 7));
    assert!(gemini.quirks.loses_killed_sessions);
    let demo = config.agent("demo").unwrap();
    assert_eq!((demo.sessions_per_instance, demo.idle_unload_s), (2, 60));
    assert_eq!(config.limits.idle_unload_s, 60);
    assert_eq!(good("[agents.demo]\nasks = false").agents[0].command, [EXE, "demo-agent"]);
}

#[test]
fn everything_of_an_entry_arrives() {
    let config = good(
        r#"
        [agents.mine]
        command = ["/opt/mine", "--acp", ""]
        env = { A = "1", B = "" }
        cwd = "/srv"
        sessions_per_instance = 9
        idle_unload_s = 3
        asks = true
        quirks = ["loads_unknown", "ids_repeat", "!ids_repeat"]
        [limits]
        frame_bytes = 2048
        queued_turns = 0
        "#,
    );
    let mine = config.agent("mine").unwrap();
    assert_eq!(mine.command, ["/opt/mine", "--acp", ""]);
    assert_eq!(mine.env.get("A").map(String::as_str), Some("1"));
    assert_eq!(mine.cwd.as_deref(), Some(Path::new("/srv")));
    assert_eq!((mine.sessions_per_instance, mine.idle_unload_s), (9, 3));
    assert_eq!(mine.quirks.present(), ["loads_unknown"]);
    assert_eq!(mine.quirks.asks, Asks::Yes);
    assert_eq!(mine.known, None);
    assert_eq!((config.limits.frame_bytes, config.limits.queued_turns), (2048, 0));
    assert_eq!(config.limits.outbox_bytes, Limits::default().outbox_bytes);
    let inherited = |name: &str| (name == "HOME" || name == "A").then(|| "/h".to_owned());
    assert_eq!(mine.var("A", &inherited).as_deref(), Some("1"));
    assert_eq!(mine.var("HOME", &inherited).as_deref(), Some("/h"));
}

#[test]
fn the_files_quirks_hold_after_initialize_told_more() {
    let (config, _) = with_path(
        "[agents.q]\ncommand=['qwen','--acp']\nquirks=['!resume_mnf','ids_repeat']",
        &["qwen"],
    )
    .unwrap();
    let agent = config.agent("q").unwrap();
    let old = frontdesk_core::agent::refine(agent.known, "qwen-code", "0.15.10");
    let quirks = agent.quirks_of(old);
    assert!(quirks.loads_unknown && quirks.ids_repeat && !quirks.resume_mnf);
    assert!(!agent.quirks.loads_unknown, "before, it is taken for the newest");
}

#[test]
fn unknown_keys_are_named_with_their_line_and_the_nearest_known_one() {
    let table = [
        (
            "defalt_agent = 'demo'",
            "/etc/c.toml:1: unknown key `defalt_agent`: it has no effect; did you mean `default_agent`?",
        ),
        (
            "\n[agent.x]\n",
            "/etc/c.toml:2: unknown key `agent`: it has no effect; did you mean `agents`?",
        ),
        (
            "[agents.demo]\n\ncomand = ['x']",
            "/etc/c.toml:3: unknown key `agents.demo.comand`: it has no effect; did you mean `command`?",
        ),
        (
            "[limits]\ncancel_grace_s = 1",
            "/etc/c.toml:2: unknown key `limits.cancel_grace_s`: it has no effect; did you mean `cancel_grace_ms`?",
        ),
        (
            "frame_bytes = 4096",
            "/etc/c.toml:1: unknown key `frame_bytes`: it has no effect; did you mean `limits.frame_bytes`?",
        ),
        ("colour = 'blue'", "/etc/c.toml:1: unknown key `colour`: it has no effect"),
        (
            "agents.demo.idle_unlod_s = 3",
            "/etc/c.toml:1: unknown key `agents.demo.idle_unlod_s`: it has no effect; did you mean `idle_unload_s`?",
        ),
        (
            "[agents.demo]\nquirks = ['load_unknown']",
            "/etc/c.toml:2: agent `demo`: there is no quirk `load_unknown`; did you mean `loads_unknown`?",
        ),
        (
            "[policy]\nunattended = 'hold'",
            "/etc/c.toml:2: `unattended` in [policy] is read but not used by this version",
        ),
        (
            "[http]\nlisten = 'x'",
            "/etc/c.toml:1: the table [http] is read but not used by this version",
        ),
        (
            "[agents.x]\ncommand = ['nowhere']",
            "/etc/c.toml:2: agent `x`: failed to find the program `nowhere`",
        ),
        (
            "[agents.codex]\nasks = true",
            "/etc/c.toml:1: agent `codex`: failed to find the program `codex-acp`",
        ),
        (
            "[agents.demo]\nheaders = { a = 'b' }",
            "/etc/c.toml:2: agent `demo`: `headers` has no effect without `urls`",
        ),
        (
            "[agents.x]\nurls = ['ws://h']\nca = '/ca.pem'",
            "/etc/c.toml:3: agent `x`: `ca` has no effect without a wss:// address",
        ),
        (
            "[agents.x]\nurls = ['wss://h']\nca = '/nowhere/ca.pem'",
            "/etc/c.toml:3: agent `x`: failed to find the file `/nowhere/ca.pem`",
        ),
        (
            "[agents.x]\nurls = ['ws://h']\ncwd = '/'",
            "/etc/c.toml:3: agent `x`: `cwd` has no effect, since `urls` starts nothing",
        ),
    ];
    for (text, expected) in table {
        assert_eq!(warned(text), [expected], "{text}");
    }
    assert_eq!(warned("x = 1\n[limits]\ny = 2\n[agents.demo]\nz = 3").len(), 3);
    assert_eq!(warned("[agents.x]\ncommand = ['nowhere']\nenv = { PATH = '/x' }").len(), 0);
}

#[test]
fn wrong_types_are_errors_with_file_line_and_column() {
    let table = [
        ("default_agent = 3", "/etc/c.toml:1:17: "),
        ("\n\n[agents.x]\ncommand = 'sh -c x'", "/etc/c.toml:4:11: "),
        ("[agents.x]\ncommand = ['a', 1]", "/etc/c.toml:2:17: "),
        ("status_words = 'live'", "/etc/c.toml:1:16: "),
        ("[limits]\nframe_bytes = '64M'", "/etc/c.toml:2:15: "),
        ("[limits]\nframe_bytes = -1", "/etc/c.toml:2:15: "),
        ("[limits]\nqueued_turns = 4294967296", "/etc/c.toml:2:16: "),
        ("sessions_per_instance = 0", "/etc/c.toml:1:25: "),
        ("idle_unload_s = 0", "/etc/c.toml:1:17: "),
        ("[agents.x]\nasks = 'yes'", "/etc/c.toml:2:8: "),
        ("agents = 3", "/etc/c.toml:1:10: "),
        ("a = 1\na = 2", "/etc/c.toml:2:1: "),
        ("é = 1", "/etc/c.toml:1:1: "),
        ("x = 'é", "/etc/c.toml:1:"),
        ("[agents.x\n", "/etc/c.toml:1:"),
    ];
    for (text, place) in table {
        let error = failed(text);
        assert!(error.starts_with(&format!("failed to read {place}")), "{text}: {error}");
        assert!(!error.contains('\n'), "{error}");
    }
}

#[test]
fn impossible_values_are_errors_that_say_what_to_do() {
    let long = "n".repeat(65);
    let table = [
        ("default_agent = 'demp'".to_owned(), ":1: there is no agent `demp`; did you mean `demo`?"),
        (
            "default_agent = 'codex'".to_owned(),
            ":1: there is no agent `codex`; the agents are: demo",
        ),
        ("[agents.'a b']\ncommand=['x']".to_owned(), ":1: `a b` is no agent name"),
        ("[agents.'../x']\ncommand=['x']".to_owned(), "`../x` is no agent name"),
        ("[agents.'']\ncommand=['x']".to_owned(), "`` is no agent name"),
        ("[agents.\"a\\u0000\"]\ncommand=['x']".to_owned(), "`a\\0` is no agent name"),
        (format!("[agents.{long}]\ncommand=['x']"), "is no agent name"),
        ("[agents.x]\n".to_owned(), ":1: agent `x`: it needs `command` or `urls`"),
        ("[agents.deepagents]\n".to_owned(), "it needs `command` or `urls`"),
        ("[agents.x]\ncommand=[]".to_owned(), ":2: agent `x`: `command` has no program"),
        ("[agents.x]\ncommand=['', 'a']".to_owned(), "`command` has no program"),
        ("[agents.x]\ncommand=['a']\nurls=['ws://h']".to_owned(), ":3: agent `x`: it has both"),
        ("[agents.x]\ncommand=['./a']".to_owned(), "`./a` is neither a full path nor a plain name"),
        ("[agents.x]\ncommand=['~/a']".to_owned(), "`~/a` is neither a full path nor a plain name"),
        ("[agents.x]\ncommand=[\"/a\", \"b\\u0000\"]".to_owned(), "a zero byte"),
        (
            "[agents.x]\ncommand=['/a']\ncwd='here'".to_owned(),
            ":3: agent `x`: `cwd` is no full path",
        ),
        ("[agents.x]\ncommand=['/a']\nenv={'A=B'='1'}".to_owned(), "`A=B` is no name"),
        ("[agents.x]\ncommand=['/a']\nenv={''='1'}".to_owned(), "`` is no name"),
        ("[agents.x]\ncommand=['/a']\nenv={A=\"\\u0000\"}".to_owned(), "`A` holds a zero byte"),
        (
            "[agents.x]\ncommand=['/a']\nenv={FRONTDESK_INSTANCE='1'}".to_owned(),
            "by Frontdesk itself",
        ),
        ("[agents.x]\nurls=[]".to_owned(), "`urls` is empty"),
        (many_urls(URLS_MAX + 1), ":2: agent `x`: `urls` has 65 addresses; 64 are the most"),
        ("[agents.x]\nurls=['http://h/']".to_owned(), "`http://h/` is no address"),
        ("[agents.x]\nurls=['ws:///p']".to_owned(), "is no address"),
        ("[agents.x]\nurls=['ws://a b/']".to_owned(), "is no address"),
        ("[agents.x]\nurls=['ws://h','ws://h']".to_owned(), "`ws://h` is there twice"),
        ("[agents.x]\nurls=['wss:///p']".to_owned(), "`wss:///p` is no address"),
        (
            "[agents.x]\nurls=['wss://h']\nca='ca.pem'".to_owned(),
            ":3: agent `x`: `ca` is no full path",
        ),
        ("[agents.x]\nurls=['ws://u:p@h/a']".to_owned(), "`ws://h/a` has a user name in it"),
        ("[agents.x]\nurls=['ws://h/a#b']".to_owned(), "has a `#` part"),
        ("[agents.x]\nurls=['ws://h:x/']".to_owned(), "is no address"),
        (
            "[agents.x]\nurls=['ws://h']\nheaders={'a b'='1'}".to_owned(),
            ":3: agent `x`: `a b` is no name of a header",
        ),
        (
            "[agents.x]\nurls=['ws://h']\nheaders={Sec-WebSocket-Key='1'}".to_owned(),
            "is set by the connection itself",
        ),
        (
            "[agents.x]\ncommand=['/a']\nsessions_per_instance=0".to_owned(),
            ":3: `sessions_per_instance` is 0",
        ),
        (
            "[limits]\nframe_bytes = 1023".to_owned(),
            ":2: `frame_bytes` is 1023; it has to be from 1024",
        ),
        ("[limits]\nframe_bytes = 1073741825".to_owned(), "to 1073741824"),
        ("[limits]\nlane_messages = 0".to_owned(), "`lane_messages` is 0"),
        ("[limits]\nprobe_ms = 31622400001".to_owned(), "to 31622400000"),
        ("idle_unload_s = 31622401".to_owned(), ":1: `idle_unload_s` is 31622401"),
        ("[agents.demo]\nidle_unload_s = 31622401".to_owned(), ":2: `idle_unload_s` is 31622401"),
        (
            "idle_unload_s = 5\n[limits]\nidle_unload_s = 6".to_owned(),
            ":3: `idle_unload_s` is set twice",
        ),
    ];
    for (text, expected) in table {
        let error = failed(&text);
        assert!(error.starts_with("failed to use /etc/c.toml"), "{text}: {error}");
        assert!(error.contains(expected), "{text}: {error}");
    }
    assert_eq!(good("idle_unload_s = 5\n[limits]\nidle_unload_s = 5").limits.idle_unload_s, 5);
    assert_eq!(good("[limits]\nidle_unload_s = 5").agents[0].idle_unload_s, 5);
    assert_eq!(good(&many_urls(URLS_MAX)).agents[0].urls.len(), 64);
    let longest = "n".repeat(64);
    good(&format!("[agents.{longest}]\ncommand=['/x']"));
}

#[test]
fn secrets_are_never_shown() {
    let text = "[agents.x]\ncommand=['/a']\nenv={KEY='sesame', OTHER='sesame2'}\n[agents.u]\nurls=['ws://h:1/p?t=sesame']\nheaders={Authorization='Bearer sesame'}";
    let shown = format!("{:?}", good(text));
    assert!(!shown.contains("sesame"), "{shown}");
    assert!(
        shown.contains("KEY") && shown.contains("ws://h:1/p") && shown.contains("Authorization"),
        "{shown}"
    );
    for text in [
        "[agents.x]\nenv={KEY=['sesame']}",
        "[agents.x]\nenv={KEY=73519462}",
        "[agents.x]\nenv='sesame'",
        "[agents.x]\nenv={KEY={a='sesame'}}",
        "[agents.x]\nenv=['sesame']",
        "[agents.x]\nenv={FRONTDESK_INSTANCE='sesame'}\ncommand=['/a']",
        "[agents.x]\nurls=['http://me:sesame@h/']",
        "[agents.x]\nurls=['ws://me:sesame@h/']",
        "[agents.x]\nurls=['wss://me:sesame@h:1/p?t=sesame#sesame']",
        "[agents.x]\nurls=['ws://h']\nheaders={Token='sesame\u{1}'}",
        "[agents.x]\nurls=['ws://h']\nheaders={Host='sesame'}",
        "[agents.x]\nurls=['ws://h']\nheaders=['sesame']",
        "[agents.x]\nenv={KEY='sesame\n'}",
    ] {
        let error = failed(text);
        assert!(!error.contains("sesame") && !error.contains("73519462"), "{error}");
    }
}

#[test]
fn the_example_is_valid_and_silent() {
    let config = good(Config::example());
    assert_eq!(config.default_agent, "demo");
    assert_eq!(config.limits, Limits::default());
    // The commented entries are valid as well.
    let there = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    let open = Config::example().replace("\n#     ", "\n").replace("/usr/share/mine/ca.pem", there);
    let (config, warnings) = with_path(&open, &["codex-acp"]).unwrap();
    assert_eq!(warnings, []);
    assert_eq!(names(&config), ["codex", "mine", "remote", "far", "demo"]);
    for key in file::TOP_KEYS.iter().chain(file::AGENT_KEYS) {
        if !["policy", "http"].contains(key) {
            assert!(Config::example().contains(key), "{key} is not in the example");
        }
    }
}

#[test]
fn a_policy_is_the_agents_own_or_the_tops() {
    let config = good(
        "[policy]\napproval_mode = 'onRequest'\n[agents.demo]\napproval_mode = 'denyUnmatched'\n\
         [agents.other]\ncommand = ['/bin/sh']",
    );
    assert_eq!(config.approval_mode, Some(ApprovalMode::OnRequest));
    let of = |name: &str| config.agent(name).unwrap().approval_mode;
    assert_eq!(of("demo"), Some(ApprovalMode::DenyUnmatched));
    assert_eq!(of("other"), Some(ApprovalMode::OnRequest));
    assert_eq!(good("").agent("demo").unwrap().approval_mode, None);
}

#[test]
fn a_policy_that_does_not_exist_is_an_error_with_its_line() {
    for (text, line) in [
        ("[policy]\napproval_mode = 'yolo'", 2),
        ("[policy]\napproval_mode = 7", 2),
        ("[agents.demo]\nidle_unload_s = 3\napproval_mode = 'AllowAll'", 3),
    ] {
        let error = with_path(text, &[]).unwrap_err().to_string();
        assert!(error.contains(&format!("/etc/c.toml:{line}:")), "{error}");
        assert!(error.contains("\"denyUnmatched\""), "{error}");
    }
}

fn document(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The cells of all table rows whose first cell is a single `word`.
fn rows(text: &str) -> Vec<Vec<String>> {
    text.lines()
        .filter(|line| line.starts_with("| `"))
        .map(|line| {
            line.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect()
        })
        .collect()
}

#[test]
fn the_documented_limits_are_the_limits() {
    let text = document("configuration.md");
    let (_, section) = text.split_once("## Limits").unwrap();
    let section = section.split("\n## ").next().unwrap();
    let defaults = serde_json::to_value(Limits::default()).unwrap();
    let rows = rows(section);
    let documented: Vec<String> = rows.iter().map(|row| row[0].replace('`', "")).collect();
    assert_eq!(documented, Limits::NAMES);
    for row in &rows {
        let name = row[0].replace('`', "");
        let default: u64 = row[1].replace(',', "").parse().unwrap_or_else(|_| panic!("{row:?}"));
        assert_eq!(Some(default), defaults[&name].as_u64(), "{name}");
        let (least, _) = build::bounds(&name);
        assert_eq!(row[2].replace(',', "").parse(), Ok(least), "{name}: the least value");
        assert!(row[3].len() > 10, "{name} says nothing");
    }
}

#[test]
fn every_key_and_every_quirk_is_documented() {
    let text = document("configuration.md");
    for key in file::TOP_KEYS.iter().chain(file::AGENT_KEYS) {
        let there = text.contains(&format!("| `{key}`")) || text.contains(&format!("`[{key}"));
        assert!(there, "{key}");
    }
    let tolerance = document("tolerance.md");
    for name in Quirks::NAMES {
        assert!(tolerance.contains(&format!("`{name}`")), "{name}");
    }
    for known in frontdesk_core::agent::KNOWN {
        assert!(text.contains(&format!("`{}`", known.kind)), "{}", known.kind);
    }
}

#[test]
fn an_agent_behind_addresses_has_no_limit_of_sessions_unless_the_file_has_one() {
    let of = |text: &str| good(text).agent("x").unwrap().sessions_per_instance;
    assert_eq!(of("[agents.x]\nurls=['ws://h']"), 0);
    assert_eq!(of("[agents.x]\nurls=['ws://h']\nsessions_per_instance=0"), 0);
    assert_eq!(of("[agents.x]\nurls=['ws://h']\nsessions_per_instance=3"), 3);
    assert_eq!(of("sessions_per_instance=2\n[agents.x]\nurls=['ws://h']"), 2);
    assert_eq!(
        of("sessions_per_instance=2\n[agents.x]\nurls=['ws://h']\nsessions_per_instance=0"),
        0
    );
    assert_eq!(of("[agents.x]\ncommand=['/a']"), 1);
    assert_eq!(good("[agents.x]\nurls=['ws://h']").agent("x").unwrap().sessions_max(), usize::MAX);
}

fn many_urls(count: usize) -> String {
    let urls: Vec<String> = (0..count).map(|at| format!("'ws://h:{}/'", at + 1)).collect();
    format!("[agents.x]\nurls=[{}]", urls.join(","))
}
