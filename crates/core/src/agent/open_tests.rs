use serde_json::json;

use super::super::known::refine;
use super::*;

/// Case C01: five ways to say it, one decision, made by the list.
#[test]
fn the_list_decides_whatever_the_code() {
    for code in [-32603, -32602, -32600] {
        assert_eq!(verdict(code, Listed::No), Verdict::Gone, "{code}");
        assert_eq!(verdict(code, Listed::Yes), Verdict::Keep, "{code}");
        assert_eq!(verdict(code, Listed::Unknown), Verdict::Keep, "{code}");
    }
    assert_eq!(verdict(-32002, Listed::No), Verdict::Gone);
    assert_eq!(verdict(-32002, Listed::Unknown), Verdict::Gone);
    assert_eq!(verdict(-32002, Listed::Yes), Verdict::Keep);
}

/// Case C03: a log-in that is missing, an overload, a lost connection.
#[test]
fn a_refusal_is_not_an_absence() {
    for listed in [Listed::Yes, Listed::No, Listed::Unknown] {
        assert_eq!(verdict(-32000, listed), Verdict::Keep);
        assert_eq!(verdict(-32601, listed), Verdict::Keep);
        assert_eq!(verdict(-32800, listed), Verdict::Keep);
    }
    assert_eq!(verdict(-32603, Listed::Yes), Verdict::Keep);
    assert_eq!(verdict(-32603, Listed::Unknown), Verdict::Keep);
}

/// Case C102: a stale lock; the session is in the list all the time.
#[test]
fn busy_is_not_gone() {
    assert_eq!(verdict(-32603, Listed::Yes), Verdict::Keep);
}

/// Case C17: the list only shows another id, so the announced one is gone.
#[test]
fn a_session_filed_under_another_id_is_gone_under_the_first() {
    let list = json!({"sessions": [{"sessionId": "sess-own-17", "cwd": "/w"}]});
    let listed = Listed::look(std::slice::from_ref(&list), "sess-ann-17");
    assert_eq!(verdict(-32603, listed), Verdict::Gone);
    assert_eq!(Listed::look(&[list], "sess-own-17"), Listed::Yes);
}

#[test]
fn codes_outside_every_range_need_the_list_too() {
    for code in [0, 1, 400, 1001, i64::MIN, i64::MAX, -31003] {
        assert_eq!(verdict(code, Listed::Unknown), Verdict::Keep, "{code}");
        assert_eq!(verdict(code, Listed::No), Verdict::Gone, "{code}");
        assert!(needs_list(code));
    }
    assert!(!needs_list(-32000) && !needs_list(-32601) && !needs_list(-32800));
}

#[test]
fn only_a_whole_list_says_no() {
    let page = |ids: &[&str], cursor: Value| {
        let rows: Vec<Value> = ids.iter().map(|id| json!({"sessionId": id})).collect();
        json!({"sessions": rows, "nextCursor": cursor})
    };
    let table = [
        (vec![], Listed::Unknown),
        (vec![Value::Null], Listed::Unknown),
        (vec![json!({})], Listed::Unknown),
        (vec![json!({"sessions": null})], Listed::Unknown),
        (vec![json!({"sessions": {}})], Listed::Unknown),
        (vec![json!({"sessions": []})], Listed::No),
        (vec![page(&["a", "b"], Value::Null)], Listed::No),
        (vec![page(&["a"], json!("next"))], Listed::Unknown),
        (vec![page(&["a"], json!(""))], Listed::Unknown),
        (vec![page(&["a"], json!("n")), page(&["b"], Value::Null)], Listed::No),
        (vec![page(&["a"], json!("n")), Value::Null], Listed::Unknown),
        (vec![page(&["x"], json!("n")), Value::Null], Listed::Yes),
        (vec![page(&["a", "x"], json!("n"))], Listed::Yes),
        (vec![json!({"sessions": [null, 1, {"sessionId": 7}, {}]})], Listed::No),
        (vec![page(&["X", "x ", "xx"], Value::Null)], Listed::No),
    ];
    for (pages, expected) in table {
        assert_eq!(Listed::look(&pages, "x"), expected, "{pages:?}");
    }
}

/// What real agents answer to a load of an unknown id, and whether they have a list to ask.
#[test]
fn every_real_agent_gets_the_right_verdict() {
    let (listed, no_list) = (Listed::No, Listed::Unknown);
    let table = [
        ("codex-acp", "0.16.0", -32002, listed, Verdict::Gone),
        ("@agentclientprotocol/codex-acp", "2.6.0", -32603, listed, Verdict::Gone),
        ("@agentclientprotocol/claude-agent-acp", "0.101.0", -32002, listed, Verdict::Gone),
        ("@agentclientprotocol/claude-agent-acp", "0.101.0", -32603, listed, Verdict::Gone),
        ("@agentclientprotocol/claude-agent-acp", "0.49.0", -32002, listed, Verdict::Gone),
        ("@zed-industries/claude-agent-acp", "0.23.1", -32002, listed, Verdict::Gone),
        ("OpenCode", "1.18.33", -32603, listed, Verdict::Gone),
        ("gemini-cli", "0.61.0", -32603, no_list, Verdict::Keep),
        ("qwen-code", "0.24.4", -32002, listed, Verdict::Gone),
        ("Kimi Code CLI", "2.1.0", -32602, listed, Verdict::Gone),
        ("pi-acp", "0.0.34", -32602, listed, Verdict::Gone),
        ("nanocoder", "1.30.0", -32603, listed, Verdict::Gone),
        ("Copilot", "1.0.102", -32002, listed, Verdict::Gone),
        ("agentao", "0.5.17", -32600, no_list, Verdict::Keep),
        ("fast-agent-acp", "0.10.48", -32002, listed, Verdict::Gone),
        ("@mistralai/mistral-vibe", "3.0.2", -32602, listed, Verdict::Gone),
        ("cline", "3.0.65", -32000, no_list, Verdict::Keep),
        ("auggie", "0.36.0", -32602, listed, Verdict::Gone),
        ("qoder-cli", "1.1.52", -32000, no_list, Verdict::Keep),
        ("OpenHands CLI ACP Agent", "1.16.0", -32602, no_list, Verdict::Keep),
    ];
    for (name, version, code, listed, expected) in table {
        assert!(refine(None, name, version).is_some(), "{name} is not in the table");
        assert_eq!(verdict(code, listed), expected, "{name} {version}");
        assert_eq!(verdict(code, Listed::Yes), Verdict::Keep, "{name} {version}");
    }
}

/// The agents that open anything: a success counts only with a proof.
#[test]
fn an_agent_that_opens_anything_has_to_show_it() {
    let quirks = |name, version| refine(None, name, version).unwrap().quirks;
    for (name, version) in [
        ("qwen-code", "0.15.10"),
        ("nanocoder", "1.30.0"),
        ("gptme", "0.35.1"),
        ("hermes-agent", "0.19.0"),
    ] {
        let quirks = quirks(name, version);
        assert!(!is_proven(&quirks, true, Listed::Unknown, false), "{name}");
        assert!(!is_proven(&quirks, true, Listed::No, false), "{name}");
        assert!(is_proven(&quirks, true, Listed::Yes, false), "{name}");
        assert!(is_proven(&quirks, true, Listed::Unknown, true), "{name}");
    }
    let hermes = quirks("hermes-agent", "0.19.0");
    assert!(!is_proven(&hermes, false, Listed::No, false));
    let nanocoder = quirks("nanocoder", "1.30.0");
    assert!(is_proven(&nanocoder, false, Listed::Unknown, false), "its resume is honest");
    assert!(is_proven(&Quirks::HONEST, true, Listed::No, false));
}
