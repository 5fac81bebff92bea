use agent_client_protocol_schema::v1::InitializeResponse;

use super::*;
use crate::agent::{Abilities, ClientAbilities, PromptKinds, Quirks, Shape, refine};

macro_rules! answers {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../../../../testdata/initialize/", $name, ".json")))),*]
    };
}

/// The recorded answers of real agents.
const ANSWERS: &[(&str, &str)] = answers![
    "agentao-0.5.17",
    "auggie-0.36.0",
    "claude-agent-acp-0.101.0",
    "claude-agent-acp-0.23.1",
    "claude-agent-acp-0.49.0",
    "cline-3.0.65",
    "codex-acp-0.16.0",
    "codex-acp-2.6.0",
    "copilot-1.0.102",
    "deepagents-acp-0.0.13",
    "deepagents-acp-0.0.13.asked-2",
    "elizacp-12.0.0",
    "elizacp-12.0.0.asked-2",
    "fast-agent-0.10.48",
    "fast-agent-0.10.48.asked-2",
    "gemini-cli-0.61.0",
    "gptme-acp-0.35.1",
    "gptme-acp-0.35.1.asked-2",
    "hermes-agent-0.19.0",
    "isaac-acp-0.4.0",
    "kimi-code-2.1.0",
    "mistral-vibe-3.0.2",
    "nanocoder-1.30.0",
    "opencode-1.18.33",
    "openhands-1.16.0",
    "openhands-1.16.0.asked-2",
    "pi-acp-0.0.34",
    "qodercli-1.1.52",
    "qwen-code-0.15.10",
    "qwen-code-0.24.4",
    "sdk-python-agent-0.12.1",
    "sdk-python-echo-0.12.1",
    "sdk-python-echo-0.12.1.asked-2",
    "sdk-rust-simple-5.2.0",
    "sdk-ts-agent-1.9.0",
    "sdk-ts-dual-1.9.0",
];

const TRUE_V2: &[(&str, &str)] =
    answers!["claude-agent-acp-0.101.0.v2", "codex-acp-2.6.0.v2", "sdk-ts-dual-1.9.0.v2"];

fn answer(name: &str) -> Value {
    let (_, text) = ANSWERS.iter().chain(TRUE_V2).find(|(known, _)| *known == name).unwrap();
    serde_json::from_str(text).unwrap()
}

/// Every member of `theirs` is in `ours` unchanged, but for those at the named paths.
fn assert_kept(theirs: &Value, ours: &Value, path: &str, changed: &[&str]) {
    if changed.contains(&path) {
        return;
    }
    match theirs {
        Value::Object(members) => {
            for (name, value) in members {
                let at = format!("{path}/{name}");
                let mine = ours.get(name).unwrap_or_else(|| panic!("{at} was lost"));
                assert_kept(value, mine, &at, changed);
            }
        }
        _ => assert_eq!(theirs, ours, "{path}"),
    }
}

#[test]
fn every_real_answer_gives_a_valid_bound_answer_that_loses_nothing() {
    let changed = ["/protocolVersion", "/agentCapabilities/loadSession"];
    for (name, text) in ANSWERS {
        let theirs: Value = serde_json::from_str(text).unwrap();
        let ours = bound_answer(&theirs, "some-agent", "1.2.3");
        let typed: InitializeResponse =
            serde_json::from_value(ours.clone()).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(ours["protocolVersion"], 1, "{name}");
        assert!(typed.agent_capabilities.load_session, "{name}");
        let session = &typed.agent_capabilities.session_capabilities;
        assert!(session.list.is_some() && session.resume.is_some(), "{name}");
        assert!(session.close.is_some(), "{name}");
        let abilities = Abilities::from_result(&ours);
        let before = Abilities::from_result(&theirs);
        assert!(abilities.load && abilities.list && abilities.resume && abilities.status, "{name}");
        assert_eq!(abilities.delete, before.delete, "{name}");
        assert_eq!(abilities.fork, before.fork, "{name}");
        assert_eq!(abilities.prompt, before.prompt, "{name}");
        assert_eq!(ours["_meta"]["frontdesk"], json!({"version": "1.2.3", "agent": "some-agent"}));
        assert_kept(&theirs, &ours, "", &changed);
        assert_eq!(theirs.get("agentInfo").is_some(), ours.get("agentInfo").is_some(), "{name}");
    }
}

#[test]
fn a_bound_answer_keeps_marks_and_members_nobody_knows() {
    let theirs = json!({
        "protocolVersion": 1,
        "agentCapabilities": {
            "sessionCapabilities": { "list": { "_meta": { "a": 1 } }, "close": null, "title": {} },
            "new": [1, 2],
        },
        "_meta": { "x": 1, "frontdesk": { "version": "0", "agent": "inner" } },
        "future": { "y": null },
    });
    let ours = bound_answer(&theirs, "a", "9");
    let session = &ours["agentCapabilities"]["sessionCapabilities"];
    assert_eq!(session["list"], json!({ "_meta": { "a": 1 } }));
    assert_eq!(session["close"], json!({}));
    assert_eq!(session["title"], json!({}));
    assert_eq!(ours["agentCapabilities"]["new"], json!([1, 2]));
    assert_eq!(ours["future"], json!({ "y": null }));
    assert_eq!(ours["_meta"], json!({ "x": 1, "frontdesk": { "version": "9", "agent": "a" } }));
    let names: Vec<_> = ours.as_object().unwrap().keys().cloned().collect();
    assert_eq!(names, ["protocolVersion", "agentCapabilities", "_meta", "future"]);
}

#[test]
fn a_bound_answer_stands_on_any_rubbish() {
    for theirs in [
        Value::Null,
        json!([]),
        json!("x"),
        json!({}),
        json!({"agentCapabilities": null, "_meta": 3}),
        json!({"agentCapabilities": {"sessionCapabilities": [], "loadSession": "yes"}}),
    ] {
        let ours = bound_answer(&theirs, "a", "1");
        let typed: InitializeResponse = serde_json::from_value(ours).unwrap();
        assert!(typed.agent_capabilities.session_capabilities.list.is_some());
    }
}

#[test]
fn an_unbound_answer_speaks_for_frontdesk() {
    let ours = unbound_answer(None, "1.2.3");
    let typed: InitializeResponse = serde_json::from_value(ours.clone()).unwrap();
    assert_eq!(typed.agent_info.unwrap().name, "frontdesk");
    assert!(typed.auth_methods.is_empty());
    assert_eq!(Abilities::from_result(&ours).prompt, PromptKinds::default());
    for (name, text) in ANSWERS {
        let theirs: Value = serde_json::from_str(text).unwrap();
        let ours = unbound_answer(Some(&theirs), "1.2.3");
        serde_json::from_value::<InitializeResponse>(ours.clone()).unwrap();
        let (before, after) = (Abilities::from_result(&theirs), Abilities::from_result(&ours));
        assert_eq!(after.prompt, before.prompt, "{name}");
        assert_eq!(after.has_auth_methods, before.has_auth_methods, "{name}");
        assert_eq!(after.logout, before.logout, "{name}");
        assert!(after.load && after.list && after.resume && after.close && after.status);
        assert!(!after.delete && !after.fork, "{name}");
        assert_eq!(ours["agentInfo"]["name"], "frontdesk");
        assert_eq!(ours["_meta"]["frontdesk"], json!({ "version": "1.2.3" }));
    }
}

/// What each real agent offers: load, resume, list, close, delete, fork.
#[test]
fn abilities_are_read_from_real_answers() {
    let table = [
        ("codex-acp-0.16.0", "LRlc"),
        ("codex-acp-2.6.0", "LRlcdf"),
        ("claude-agent-acp-0.101.0", "LRlcdf"),
        ("claude-agent-acp-0.49.0", "LRlcdf"),
        ("claude-agent-acp-0.23.1", "LRlcf"),
        ("opencode-1.18.33", "LRlcf"),
        ("gemini-cli-0.61.0", "L"),
        ("qwen-code-0.24.4", "LRl"),
        ("qwen-code-0.15.10", "LRl"),
        ("kimi-code-2.1.0", "LRlcdf"),
        ("pi-acp-0.0.34", "Lld"),
        ("nanocoder-1.30.0", "LRlcd"),
        ("copilot-1.0.102", "Llc"),
        ("agentao-0.5.17", "L"),
        ("fast-agent-0.10.48", "LRl"),
        ("mistral-vibe-3.0.2", "Llcf"),
        ("hermes-agent-0.19.0", "LRlf"),
        ("gptme-acp-0.35.1", ""),
        ("deepagents-acp-0.0.13", ""),
        ("elizacp-12.0.0", ""),
        ("sdk-python-echo-0.12.1", ""),
        ("sdk-ts-agent-1.9.0", ""),
        ("qodercli-1.1.52", "LRlcdf"),
    ];
    for (name, expected) in table {
        assert_eq!(letters(&Abilities::from_result(&answer(name))), expected, "{name}");
    }
}

fn letters(abilities: &Abilities) -> String {
    let all = [
        (abilities.load, 'L'),
        (abilities.resume, 'R'),
        (abilities.list, 'l'),
        (abilities.close, 'c'),
        (abilities.delete, 'd'),
        (abilities.fork, 'f'),
        (abilities.status, 's'),
    ];
    all.iter().filter(|(there, _)| *there).map(|(_, letter)| *letter).collect()
}

#[test]
fn quirks_correct_what_agents_claim() {
    let table = [
        ("qwen-code-0.15.10", "Ll"),
        ("nanocoder-1.30.0", "LRld"),
        ("mistral-vibe-3.0.2", "LRlcf"),
        ("gptme-acp-0.35.1", "Ll"),
        ("codex-acp-0.16.0", "LRlc"),
    ];
    for (name, expected) in table {
        let abilities = Abilities::from_result(&answer(name));
        let info = (abilities.name.clone().unwrap(), abilities.agent_version.clone().unwrap());
        let quirks = refine(None, &info.0, &info.1).unwrap().quirks;
        let abilities = abilities.with_quirks(&quirks);
        assert_eq!(letters(&abilities), expected, "{name}");
        assert!(abilities.can_reopen());
    }
    assert!(!Abilities::default().with_quirks(&Quirks::HONEST).can_reopen());
}

#[test]
fn only_the_shape_tells_the_version() {
    for (name, text) in ANSWERS {
        let abilities = Abilities::from_result(&serde_json::from_str(text).unwrap());
        assert_eq!(abilities.shape, Shape::V1, "{name}");
        let echoed = name.ends_with(".asked-2");
        assert_eq!(abilities.version, Some(if echoed { 2 } else { 1 }), "{name}");
    }
    for (name, text) in TRUE_V2 {
        let abilities = Abilities::from_result(&serde_json::from_str(text).unwrap());
        assert_eq!((abilities.shape, abilities.version), (Shape::V2, Some(2)), "{name}");
        assert!(abilities.resume && abilities.list && abilities.close && !abilities.load, "{name}");
        assert!(abilities.name.is_some(), "{name}");
    }
    let both = json!({"protocolVersion": 2, "capabilities": {}, "agentCapabilities": {}});
    assert_eq!(Abilities::from_result(&both).shape, Shape::V1);
}

#[test]
fn only_an_object_is_a_marker_and_only_true_is_true() {
    for wrong in [Value::Null, json!(false), json!(true), json!(1), json!("x"), json!([])] {
        let result = json!({"agentCapabilities": {
            "loadSession": if wrong == json!(true) { Value::Null } else { wrong.clone() },
            "promptCapabilities": { "image": {} },
            "sessionCapabilities": { "list": wrong, "status": wrong, "fork": wrong },
        }});
        assert_eq!(letters(&Abilities::from_result(&result)), "", "{wrong}");
        assert!(!Abilities::from_result(&result).prompt.image);
    }
    let result = json!({"agentCapabilities": {"sessionCapabilities": {"status": {"x": 1}}}});
    assert_eq!(letters(&Abilities::from_result(&result)), "s");
}

#[test]
fn client_abilities_are_read_from_both_versions() {
    let params = json!({"protocolVersion": 1, "clientCapabilities": {
        "fs": { "readTextFile": true, "writeTextFile": false }, "terminal": true,
        "elicitation": { "form": {}, "url": null } }});
    let client = ClientAbilities::from_params(&params);
    assert!(client.read_text_file && client.terminal && client.elicitation_form);
    assert!(!client.write_text_file && !client.elicitation_url);
    let table = [
        ("fs/read_text_file", true),
        ("fs/write_text_file", false),
        ("terminal/create", true),
        ("terminal/kill", true),
        ("elicitation/create", true),
        ("session/request_permission", true),
        ("_vendor/ask", true),
    ];
    for (method, expected) in table {
        assert_eq!(client.can_take(method), expected, "{method}");
    }
    let v2 = json!({"protocolVersion": 2, "capabilities": {"elicitation": {"url": {}}}});
    let client = ClientAbilities::from_params(&v2);
    assert!(client.elicitation_url && !client.terminal && !client.read_text_file);
    for rubbish in [Value::Null, json!([]), json!({"clientCapabilities": 7})] {
        assert_eq!(ClientAbilities::from_params(&rubbish), ClientAbilities::default());
    }
}

#[test]
fn the_greeting_upstream_keeps_every_byte_but_the_version() {
    let table = [
        (
            r#"{"protocolVersion":2,"clientCapabilities":{"n":1e2,"big":123456789012345678901234567890}}"#,
            r#"{"protocolVersion":1,"clientCapabilities":{"n":1e2,"big":123456789012345678901234567890}}"#,
        ),
        (
            r#"{ "a" : "\u00e9" , "clientCapabilities":{} , "protocolVersion" : "2025" , "z":null }"#,
            r#"{ "a" : "\u00e9" , "clientCapabilities":{} , "protocolVersion" : 1 , "z":null }"#,
        ),
        (
            r#"{"clientCapabilities":{"protocolVersion":9}}"#,
            r#"{"protocolVersion":1,"clientCapabilities":{"protocolVersion":9}}"#,
        ),
        (r#"{"protocolVersion":1}"#, r#"{"clientCapabilities":{},"protocolVersion":1}"#),
        (
            r#"{"protocol\u0056ersion":2,"protocolVersion":3,"clientCapabilities":{}}"#,
            r#"{"protocol\u0056ersion":1,"protocolVersion":1,"clientCapabilities":{}}"#,
        ),
        (" { } ", r#"{"protocolVersion":1,"clientCapabilities":{} }"#),
        ("null", r#"{"protocolVersion":1,"clientCapabilities":{}}"#),
        ("[1]", r#"{"protocolVersion":1,"clientCapabilities":{}}"#),
        ("", r#"{"protocolVersion":1,"clientCapabilities":{}}"#),
        (r#"{"protocolVersion":1"#, r#"{"protocolVersion":1,"clientCapabilities":{}}"#),
    ];
    for (from, to) in table {
        assert_eq!(upstream_initialize(from), to, "{from}");
        assert!(serde_json::from_str::<Value>(to).unwrap().is_object());
        let again = upstream_initialize(to);
        assert_eq!(again, to, "twice is the same as once");
    }
}

proptest::proptest! {
    /// Whatever a client sends, an agent is sent one valid line of version 1.
    #[test]
    fn the_greeting_upstream_is_always_valid(text in "\\PC{0,80}", name in "[a-z]{1,9}", n in 0u32..9) {
        let members = json!({ name: text, "protocolVersion": n }).to_string();
        for params in [text, members] {
            let sent: Value = serde_json::from_str(&upstream_initialize(&params)).unwrap();
            proptest::prop_assert_eq!(&sent["protocolVersion"], &json!(1));
        }
    }
}

#[test]
fn a_prompt_with_a_kind_that_is_not_offered_is_named() {
    let kinds = PromptKinds { image: true, ..PromptKinds::default() };
    let prompt =
        |kind: &str| format!(r#"{{"prompt":[{{"type":"text","text":"x"}},{{"type":"{kind}"}}]}}"#);
    assert_eq!(kinds.missing(&prompt("image")), None);
    assert_eq!(kinds.missing(&prompt("audio")), Some("audio"));
    assert_eq!(kinds.missing(&prompt("resource")), Some("resource"));
    assert_eq!(kinds.missing(&prompt("resource_link")), None);
    assert_eq!(kinds.missing(&prompt("brand_new")), None);
    assert_eq!(kinds.missing("7"), None);
}
