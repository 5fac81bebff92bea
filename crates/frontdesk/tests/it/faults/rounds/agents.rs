//! The agents' end: what each process of the scripted agent was told and said, out of its own log.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use serde_json::Value;

/// One question of an agent, and what it was answered.
#[derive(Debug)]
pub(super) struct Question {
    pub(super) session: String,
    pub(super) answers: Vec<Value>,
}

/// What one process was told and said.
#[derive(Debug, Default)]
pub(super) struct Talk {
    /// Updates by native id, replays of stored history left out.
    pub(super) said: BTreeMap<String, Vec<Value>>,
    /// Permission questions by the agent's own request id, as JSON text.
    pub(super) asked: BTreeMap<String, Question>,
    /// The last frame that it wrote or was about to write.
    pub(super) last: Value,
    /// Loads under way: request id and native id.
    loading: BTreeMap<String, String>,
}

/// A file that is read on.
#[derive(Debug, Default)]
struct Reading {
    offset: u64,
    instance: String,
}

/// The folder of logs.
#[derive(Debug)]
pub(super) struct Agents {
    folder: PathBuf,
    files: BTreeMap<PathBuf, Reading>,
    talks: BTreeMap<String, Talk>,
    /// How often agents were told each prompt, by its first line.
    pub(super) prompts: BTreeMap<String, usize>,
}

impl Agents {
    pub(super) fn new(folder: PathBuf) -> Self {
        Self { folder, files: BTreeMap::new(), talks: BTreeMap::new(), prompts: BTreeMap::new() }
    }

    /// Of one instance.
    pub(super) fn talk(&self, instance: &str) -> Option<&Talk> {
        self.talks.get(instance)
    }

    /// How many permission questions agents asked.
    pub(super) fn questions(&self) -> u64 {
        self.talks.values().map(|talk| talk.asked.len() as u64).sum()
    }

    /// Reads what is new.
    pub(super) fn read_on(&mut self) {
        for entry in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let path = entry.path();
            let mut reading = self.files.remove(&path).unwrap_or_default();
            for line in new_lines(&path, &mut reading.offset) {
                self.take(&line, &mut reading.instance);
            }
            self.files.insert(path, reading);
        }
    }

    fn take(&mut self, line: &Value, instance: &mut String) {
        if let Some(name) = line["instance"].as_str() {
            name.clone_into(instance);
            return;
        }
        let frame = |way: &str| line[way].as_str().and_then(|text| serde_json::from_str(text).ok());
        let talk = self.talks.entry(instance.clone()).or_default();
        if let Some(frame) = frame("in") {
            if let Some(prompt) = talk.hear(&frame) {
                *self.prompts.entry(prompt).or_default() += 1;
            }
        } else if let Some(frame) = frame("out") {
            talk.say(frame);
        }
    }
}

impl Talk {
    /// Takes what the agent was told; the first line of a prompt.
    fn hear(&mut self, frame: &Value) -> Option<String> {
        let session = frame["params"]["sessionId"].as_str().unwrap_or_default();
        match frame["method"].as_str() {
            Some("session/load") => {
                self.loading.insert(frame["id"].to_string(), session.to_owned());
            }
            Some("session/prompt") => {
                let text = frame["params"]["prompt"][0]["text"].as_str().unwrap_or_default();
                return text.lines().next().map(str::to_owned);
            }
            None => {
                if let Some(question) = self.asked.get_mut(&frame["id"].to_string()) {
                    question.answers.push(frame["result"].clone());
                }
            }
            Some(_) => {}
        }
        None
    }

    fn say(&mut self, frame: Value) {
        let session = frame["params"]["sessionId"].as_str().unwrap_or_default().to_owned();
        match frame["method"].as_str() {
            Some("session/update") => {
                let is_replay = self.loading.values().any(|loading| *loading == session);
                if !is_replay {
                    let update = frame["params"]["update"].clone();
                    self.said.entry(session).or_default().push(update);
                }
            }
            Some("session/request_permission") => {
                let question = Question { session, answers: Vec::new() };
                self.asked.insert(frame["id"].to_string(), question);
            }
            None => {
                self.loading.remove(&frame["id"].to_string());
            }
            Some(_) => {}
        }
        self.last = frame;
    }
}

/// The whole lines behind an offset.
fn new_lines(path: &Path, offset: &mut u64) -> Vec<Value> {
    let mut text = Vec::new();
    let read = File::open(path).and_then(|mut file| {
        file.seek(SeekFrom::Start(*offset))?;
        file.read_to_end(&mut text)
    });
    read.expect("a log can be read");
    let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    *offset += whole as u64;
    let lines = text[..whole].split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines.map(|line| serde_json::from_slice(line).expect("a line of the log is JSON")).collect()
}
