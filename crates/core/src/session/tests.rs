//! The session machine: scenarios by hand, and a model that plays everybody at random.

mod answers;
mod carried;
mod carry;
mod keep;
mod model;
mod passes;
mod rejoin;
mod scenarios;

use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;

use super::*;
use crate::agent::ClientAbilities;
use crate::envelope::Message;
use crate::ids::InstanceId;

/// A machine and what came out of it.
struct Bench {
    session: Session,
    mono_ms: u64,
    end: u64,
    /// What the wall clock says, input after input and then from the front; empty: the same as the
    /// other one.
    walls: Vec<i64>,
    /// What came out of each input.
    trace: Vec<Vec<String>>,
}

impl Bench {
    /// A live session made by client 1.
    fn live() -> Self {
        let mut bench = Self::cold(View::default());
        bench.run(Input::Born(Box::new(born())));
        bench
    }

    fn cold(view: View) -> Self {
        let limits = Arc::new(Limits::default());
        let now = Now { wall: Timestamp::UNIX_EPOCH, mono_ms: 0 };
        let session = Session::cold(view, limits, now);
        Self { session, mono_ms: 0, end: 0, walls: Vec::new(), trace: Vec::new() }
    }

    fn run(&mut self, input: Input) -> Vec<Effect> {
        let steady = self.mono_ms.try_into().unwrap();
        let at = self.trace.len() % self.walls.len().max(1);
        let wall_ms = self.walls.get(at).copied().unwrap_or(steady);
        let wall = Timestamp::from_millisecond(wall_ms).unwrap();
        let effects = self.session.handle(input, Now { wall, mono_ms: self.mono_ms });
        self.trace.push(told(&effects));
        effects
    }

    fn wait(&mut self, ms: u64) -> Vec<Effect> {
        self.mono_ms += ms;
        self.run(Input::Tick)
    }

    fn prompt(&mut self, conn: u64, id: &str, text: &str) -> Vec<Effect> {
        self.run(Input::Prompt { conn: ConnId(conn), frame: prompt(id, text) })
    }

    fn agent(&mut self, text: &str) -> Vec<Effect> {
        self.end += text.len() as u64 + 1;
        let source = Source { instance: InstanceId("i".into()), end: self.end, part: 0 };
        let message = Message::parse(Bytes::copy_from_slice(text.as_bytes())).unwrap();
        self.run(Input::Agent { message, at: Position { source }, about: None })
    }

    /// The agent's answer, behind all that it has said.
    fn answered(&mut self, tag: Tag, frame: Frame) -> Vec<Effect> {
        self.end += frame.text.len() as u64 + 1;
        let source = Source { instance: InstanceId("i".into()), end: self.end, part: 0 };
        self.run(Input::AgentAnswer { tag, frame, at: Position { source } })
    }

    fn attach(&mut self, conn: u64, how: How) -> Vec<Effect> {
        self.run(Input::Attach(Attach {
            client: client(conn),
            id: "7".into(),
            how,
            spelling: "n".into(),
            params: Bytes::from_static(b"{}"),
            from: Mark::default(),
        }))
    }

    /// Attaches and reads history to its end.
    fn join(&mut self, conn: u64) -> Vec<Effect> {
        let mut effects = self.attach(conn, How::Load);
        let seq = self.session.view().seq;
        effects.extend(self.run(Input::CaughtUp { conn: ConnId(conn), seq }));
        effects
    }
}

fn born() -> Born {
    Born {
        by: By { client: "k1".into(), name: "client 1".into() },
        client_info: None,
        first: Some(First { client: client(1), id: "1".into(), spelling: "key".into() }),
        answer: frame(r#"{"id":"x","result":{"sessionId":"n","modes":{"currentModeId":"ask"}}}"#),
        agent: "a".into(),
        facts: facts(),
        cwd: "/w".into(),
        additional_directories: Vec::new(),
        parameters: "{}".into(),
        forked_from: None,
        approval: None,
    }
}

fn facts() -> AgentFacts {
    AgentFacts {
        instance: "i".into(),
        place: Place::Instance("i".into()),
        epoch: 1,
        can_return: true,
        idle_unload_ms: 1_800_000,
        loses_killed: false,
        approval: None,
    }
}

fn client(conn: u64) -> Client {
    Client {
        conn: ConnId(conn),
        key: format!("k{conn}").into(),
        name: format!("client {conn}").into(),
        can: ClientAbilities {
            read_text_file: true,
            terminal: conn % 10 == 1,
            ..ClientAbilities::default()
        },
    }
}

fn frame(text: &str) -> Frame {
    Message::parse(Bytes::copy_from_slice(text.as_bytes())).unwrap().frame().clone()
}

fn prompt(id: &str, text: &str) -> Frame {
    frame(&format!(
        r#"{{"id":{id},"method":"session/prompt","params":{{"sessionId":"key","prompt":[{{"type":"text","text":"{text}"}}]}}}}"#
    ))
}

/// The effects as short words, for reading in a test.
fn words(effects: &[Effect]) -> Vec<String> {
    effects
        .iter()
        .map(|effect| match effect {
            Effect::Append(record) => format!("write {}", record.kind),
            Effect::Sync => "sync".into(),
            Effect::Tell { conn, frame, hop: Some(_), .. } => {
                format!("ask {conn} {}", method(frame))
            }
            Effect::Tell { conn, frame, hop: None, .. } => format!("tell {conn} {}", method(frame)),
            Effect::Answer { conn, id, frame, .. } => {
                format!("answer {conn} {id} {}", outcome(frame))
            }
            Effect::Forget { conn, .. } => format!("forget {conn}"),
            Effect::CatchUp { conn, from, .. } => format!("catch-up {conn} from {}", from.seq),
            Effect::TakenBack { conn, id } => format!("taken back {conn} {id}"),
            Effect::Find { conn, prompts, .. } => format!("find {conn} {}", prompts.len()),
            Effect::Send { frame, .. } => format!("send {}", frame.method),
            Effect::Notify(frame) => format!("reply {}", method(frame)),
            Effect::Settle { frame: Some(frame), .. } => format!("reply {}", method(frame)),
            Effect::Owe { .. } | Effect::Settle { frame: None, .. } => String::new(),
            Effect::CancelSent(_) => "cancel-sent".into(),
            Effect::Open { .. } => "open".into(),
            Effect::Shut { why } => format!("shut {}", why.as_str()),
            Effect::LetGo { .. } => "let-go".into(),
            Effect::EndStuck => "end-stuck".into(),
            Effect::Joined { .. } => String::new(),
            Effect::Left { conn } => format!("left {conn}"),
        })
        .filter(|word| !word.is_empty())
        .collect()
}

/// The effects as words, with all that a record says but its stamp.
fn told(effects: &[Effect]) -> Vec<String> {
    let record = |effect: &Effect| match effect {
        Effect::Append(record) => Some(format!("{} {} {:?}", record.seq, record.kind, record.data)),
        _ => None,
    };
    words(effects).into_iter().chain(effects.iter().filter_map(record)).collect()
}

fn method(frame: &Bytes) -> String {
    match Message::parse(frame.clone()) {
        Ok(Message::Response(response)) => outcome(&response.text),
        Ok(other) => other.frame().method.to_string(),
        Err(error) => panic!("{error}: {frame:?}"),
    }
}

fn outcome(frame: &Bytes) -> String {
    let value: Value = serde_json::from_slice(frame).unwrap();
    value["error"]["code"].as_i64().map_or_else(|| "ok".to_owned(), |code| code.to_string())
}

/// The tag of the last request sent to the agent.
fn sent(effects: &[Effect]) -> Tag {
    let mut tags = effects.iter().rev().filter_map(|effect| match effect {
        Effect::Send { tag, .. } => Some(*tag),
        _ => None,
    });
    tags.next().unwrap()
}
