//! Clients of the desk: over the stdio shim, over the unix socket, or straight to a puppet.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, mpsc};
use std::thread;

use serde_json::{Value, json};

use super::world::{Client, World};

/// The far end of a client, kept to end it.
#[derive(Debug)]
pub(super) enum Far {
    /// A child with pipes.
    Child(Child),
    /// A connection.
    Socket(UnixStream),
}

impl Far {
    /// Ends the connection, without any courtesy.
    pub(super) fn end(self) {
        match self {
            Self::Child(mut child) => {
                let _ = child.kill();
                let _ = child.wait();
            }
            Self::Socket(socket) => {
                let _ = socket.shutdown(Shutdown::Both);
            }
        }
    }
}

/// Starts a child with pipes and makes it the client `name`.
pub(super) fn spawn(
    world: &Arc<World>,
    name: &str,
    command: &mut Command,
    stderr: File,
) -> Result<Far, String> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(stderr)
        .spawn()
        .map_err(|e| format!("failed to start client {name}: {e}"))?;
    let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(format!("client {name} has no pipes"));
    };
    join(world, name, input, output);
    Ok(Far::Child(child))
}

/// Connects the client `name` to the desk's socket and says the first line.
pub(super) fn connect(
    world: &Arc<World>,
    name: &str,
    socket: &std::path::Path,
    first: &Value,
) -> Result<Far, String> {
    let failed = |e: std::io::Error| format!("failed to connect client {name}: {e}");
    let mut stream = UnixStream::connect(socket).map_err(failed)?;
    stream.write_all(format!("{first}\n").as_bytes()).map_err(failed)?;
    let (input, output) =
        (stream.try_clone().map_err(failed)?, stream.try_clone().map_err(failed)?);
    join(world, name, input, output);
    Ok(Far::Socket(stream))
}

fn join(
    world: &Arc<World>,
    name: &str,
    mut input: impl Write + Send + 'static,
    output: impl Read + Send + 'static,
) {
    let (lines, waiting) = mpsc::channel::<Vec<u8>>();
    thread::spawn(move || {
        while let Ok(line) = waiting.recv() {
            if input.write_all(&line).and_then(|()| input.flush()).is_err() {
                return;
            }
        }
    });
    let serial = {
        let mut state = world.lock();
        state.note(world.begun, &format!("{name} connects"));
        state.connections += 1;
        let serial = state.connections;
        let answers = state.clients.remove(name).map_or_else(BTreeMap::new, |old| old.answers);
        let (frames, open) = (Vec::new(), Vec::new());
        let client = Client { serial, frames, open, answers, lines, closed: false };
        state.clients.insert(name.to_owned(), client);
        serial
    };
    let (world, name) = (Arc::clone(world), name.to_owned());
    thread::spawn(move || {
        let mut output = BufReader::with_capacity(64 << 10, output);
        let mut line = Vec::new();
        loop {
            line.clear();
            match output.read_until(b'\n', &mut line) {
                Ok(0) | Err(_) => break,
                Ok(_) => {}
            }
            if line.last() == Some(&b'\n') {
                line.pop();
            }
            let (raw, parsed) = (line.as_slice().into(), serde_json::from_slice(&line).ok());
            let mut state = world.lock();
            // A later connection of the same name has taken over.
            if state.clients.get(&name).is_none_or(|client| client.serial != serial) {
                break;
            }
            let mut frame = state.frame(world.begun, &format!("desk > {name} "), raw, parsed);
            let (id, method) = (frame.member("id").cloned(), frame.method().map(str::to_owned));
            let mut said = None;
            if let (Some(client), Some(id), Some(method)) =
                (state.clients.get_mut(&name), id, method)
            {
                if let Some(answer) = client.answers.get(&method) {
                    let mut answer = answer.clone();
                    answer["jsonrpc"] = json!("2.0");
                    answer["id"] = id;
                    frame.taken = true;
                    let _ = client.lines.send(format!("{answer}\n").into_bytes());
                    said = Some(answer);
                } else {
                    client.open.push((id, method));
                }
            }
            if let Some(client) = state.clients.get_mut(&name) {
                client.frames.push(frame);
            }
            if let Some(said) = said {
                state.note(world.begun, &format!("{name} > desk  {said}"));
            }
            drop(state);
            world.tell();
        }
        let mut state = world.lock();
        if state.clients.get(&name).is_some_and(|client| client.serial == serial) {
            state.note(world.begun, &format!("{name} is disconnected"));
            if let Some(client) = state.clients.get_mut(&name) {
                client.closed = true;
            }
        }
        drop(state);
        world.tell();
    });
}
