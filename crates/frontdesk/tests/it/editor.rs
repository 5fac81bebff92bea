//! What an editor does for an agent: answers permission questions, serves files, runs terminals.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::acp::{Answers, Ask, Reply};

/// The capabilities of a client that uses [`editor`].
pub(crate) fn capabilities() -> Value {
    json!({ "fs": { "readTextFile": true, "writeTextFile": true }, "terminal": true })
}

/// How permission questions are answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Permission {
    Allow,
    Reject,
    Cancel,
}

/// A terminal that has run to its end (tests run short commands only).
struct Terminal {
    output: String,
    exit: Value,
}

/// An editor working in `cwd`.
pub(crate) fn editor(cwd: impl Into<PathBuf>, permission: Permission) -> Answers {
    let cwd = cwd.into();
    let terminals: Mutex<HashMap<String, Terminal>> = Mutex::default();
    Arc::new(move |ask: &Ask| match serve(ask, &cwd, permission, &terminals) {
        Ok(result) => Reply::Result(result),
        Err((code, message)) => Reply::Error { code, message },
    })
}

type Served = Result<Value, (i64, String)>;

fn serve(
    ask: &Ask,
    cwd: &Path,
    permission: Permission,
    terminals: &Mutex<HashMap<String, Terminal>>,
) -> Served {
    let text = |name: &str| {
        let value = ask.params[name].as_str();
        value.map(str::to_owned).ok_or((-32602, format!("{name} is missing")))
    };
    let io = |error: std::io::Error| (-32603, error.to_string());
    let terminal = |read: &dyn Fn(&Terminal) -> Value| {
        let terminals = terminals.lock().unwrap();
        let id = text("terminalId")?;
        terminals.get(&id).map(read).ok_or((-32602, format!("no terminal {id}")))
    };
    match ask.method.as_str() {
        "session/request_permission" => Ok(permit(&ask.params["options"], permission)),
        "fs/read_text_file" => {
            Ok(json!({ "content": std::fs::read_to_string(text("path")?).map_err(io)? }))
        }
        "fs/write_text_file" => {
            std::fs::write(text("path")?, text("content")?).map_err(io)?;
            Ok(json!({}))
        }
        "terminal/create" => {
            let made = run(&ask.params, cwd).map_err(io)?;
            let mut terminals = terminals.lock().unwrap();
            let id = format!("term-{}", terminals.len());
            terminals.insert(id.clone(), made);
            Ok(json!({ "terminalId": id }))
        }
        "terminal/output" => terminal(
            &|it| json!({ "output": it.output, "truncated": false, "exitStatus": it.exit }),
        ),
        "terminal/wait_for_exit" => terminal(&|it| it.exit.clone()),
        "terminal/kill" | "terminal/release" => terminal(&|_| json!({})),
        method => Err((-32601, format!("Method not found: {method}"))),
    }
}

/// The answer to a permission question: the first option of the wanted kind.
fn permit(options: &Value, permission: Permission) -> Value {
    let kinds = match permission {
        Permission::Allow => ["allow_once", "allow_always"],
        Permission::Reject => ["reject_once", "reject_always"],
        Permission::Cancel => return json!({ "outcome": { "outcome": "cancelled" } }),
    };
    let options = options.as_array().map(Vec::as_slice).unwrap_or_default();
    let chosen = kinds.iter().find_map(|kind| options.iter().find(|it| it["kind"] == *kind));
    match chosen {
        Some(option) => {
            json!({ "outcome": { "outcome": "selected", "optionId": option["optionId"] } })
        }
        None => json!({ "outcome": { "outcome": "cancelled" } }),
    }
}

/// Runs a terminal's command to its end. A command with arguments is run as it is, a bare one by
/// the shell, since agents send both.
fn run(params: &Value, cwd: &Path) -> std::io::Result<Terminal> {
    let program = params["command"].as_str().unwrap_or_default();
    let args = params["args"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut command = if args.is_empty() {
        let mut shell = Command::new("sh");
        shell.args(["-c", program]);
        shell
    } else {
        let mut plain = Command::new(program);
        plain.args(args.iter().filter_map(Value::as_str));
        plain
    };
    for pair in params["env"].as_array().map(Vec::as_slice).unwrap_or_default() {
        if let (Some(name), Some(value)) = (pair["name"].as_str(), pair["value"].as_str()) {
            command.env(name, value);
        }
    }
    let folder = params["cwd"].as_str().map_or_else(|| cwd.to_path_buf(), PathBuf::from);
    let out = command.current_dir(folder).stdin(Stdio::null()).output()?;
    let output = String::from_utf8_lossy(&out.stdout) + String::from_utf8_lossy(&out.stderr);
    Ok(Terminal {
        output: output.into_owned(),
        exit: json!({ "exitCode": out.status.code(), "signal": null }),
    })
}
