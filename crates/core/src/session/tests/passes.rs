//! What an agent asks of clients besides questions: how much may be open, and which terminal is whose.

use super::scenarios::hop_of;
use super::*;

const READ: &str =
    r#"{"id":1,"method":"fs/read_text_file","params":{"sessionId":"n","path":"/x"}}"#;

#[test]
fn as_many_requests_wait_for_clients_as_the_limit_says() {
    let mut bench = Bench::live();
    let limit = bench.session.limits.open_passes;
    let first = bench.agent(READ);
    for _ in 1..limit {
        assert_eq!(words(&bench.agent(READ)), ["ask c1 fs/read_text_file"]);
    }
    assert_eq!(bench.session.passes.len(), limit as usize);
    for method in ["fs/read_text_file", "terminal/create", "_vendor/drain"] {
        let asked = format!(r#"{{"id":2,"method":"{method}","params":{{"sessionId":"n"}}}}"#);
        assert_eq!(words(&bench.agent(&asked)), ["reply -31004"], "{method}");
    }
    // What nobody can take is told so, as ever; and each answer makes room for one.
    let write = r#"{"id":3,"method":"fs/write_text_file","params":{"sessionId":"n","path":"/x"}}"#;
    assert_eq!(words(&bench.agent(write)), ["reply -31008"]);
    let text = frame(r#"{"id":"h","result":{"content":"x"}}"#);
    let answer = Input::Answer { conn: ConnId(1), hop: hop_of(&first), frame: text };
    assert_eq!(words(&bench.run(answer)), ["reply ok"]);
    assert_eq!(words(&bench.agent(READ)), ["ask c1 fs/read_text_file"]);
    assert_eq!(words(&bench.agent(READ)), ["reply -31004"]);
}

#[test]
fn a_released_terminal_is_nobodys() {
    let mut bench = Bench::live();
    let call = |method: &str| {
        let params = r#"{"sessionId":"n","terminalId":"t1"}"#;
        format!(r#"{{"id":1,"method":"terminal/{method}","params":{params}}}"#)
    };
    let answer = |bench: &mut Bench, asked: &[Effect], text: &str| {
        let input = Input::Answer { conn: ConnId(1), hop: hop_of(asked), frame: frame(text) };
        assert_eq!(words(&bench.run(input)).len(), 1);
    };
    let asked = bench.agent(&call("create"));
    answer(&mut bench, &asked, r#"{"id":"h","result":{"terminalId":"t1"}}"#);
    // One that the client could not release it has still.
    let asked = bench.agent(&call("release"));
    answer(&mut bench, &asked, r#"{"id":"h","error":{"code":-32603,"message":"not now"}}"#);
    let asked = bench.agent(&call("release"));
    assert_eq!(words(&asked), ["ask c1 terminal/release"]);
    answer(&mut bench, &asked, r#"{"id":"h","result":null}"#);
    assert!(bench.session.terminals.is_empty());
    assert_eq!(words(&bench.agent(&call("output"))), ["reply -32602"]);
}

#[test]
fn as_many_terminals_are_kept_as_the_limit_says() {
    let mut bench = Bench::live();
    let limits = Limits { terminals: 3, ..Limits::default() };
    bench.session.limits = Arc::new(limits);
    let create = r#"{"id":1,"method":"terminal/create","params":{"sessionId":"n"}}"#;
    let answer = |bench: &mut Bench, asked: &[Effect], text: &str| {
        bench.run(Input::Answer { conn: ConnId(1), hop: hop_of(asked), frame: frame(text) });
    };
    let made = |bench: &mut Bench, id: &str| {
        let asked = bench.agent(create);
        let text = format!(r#"{{"id":"h","result":{{"terminalId":"{id}"}}}}"#);
        answer(bench, &asked, &text);
    };
    made(&mut bench, "t1");
    made(&mut bench, "t2");
    // One that is being made counts, until its client says that it is not.
    let third = bench.agent(create);
    assert_eq!(words(&third), ["ask c1 terminal/create"]);
    assert_eq!(words(&bench.agent(create)), ["reply -31004"]);
    answer(&mut bench, &third, r#"{"id":"h","error":{"code":-32603,"message":"no"}}"#);
    made(&mut bench, "t3");
    let refused = bench.agent(create);
    assert_eq!(words(&refused), ["reply -31004"]);
    let Some(Effect::Settle { frame: Some(told), .. }) = refused.last() else { panic!() };
    let told = String::from_utf8_lossy(told);
    assert!(told.contains("has made 3 terminals that are not released"), "{told}");
    // Those there are work on, and a released one makes room.
    let params = r#"{"sessionId":"n","terminalId":"t2"}"#;
    let call = |method: &str| format!(r#"{{"id":2,"method":"{method}","params":{params}}}"#);
    let asked = bench.agent(&call("terminal/output"));
    assert_eq!(words(&asked), ["ask c1 terminal/output"]);
    answer(&mut bench, &asked, r#"{"id":"h","result":{"output":""}}"#);
    let asked = bench.agent(&call("terminal/release"));
    answer(&mut bench, &asked, r#"{"id":"h","result":null}"#);
    made(&mut bench, "t4");
    assert_eq!(words(&bench.agent(create)), ["reply -31004"]);
}
