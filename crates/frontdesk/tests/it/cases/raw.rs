//! Raw bytes: what a case writes that is no ordinary frame.

use serde_json::Value;

use super::pattern::{Side, shorten};
use super::run::Run;

/// The bytes of a raw step: `text`, `hex`, `json` or `pad`.
///
/// `text` is as written, no line end added; a quoted `"@p"` becomes that id as JSON. `json` is a frame in
/// one line with its line end. `pad` is a frame in which `%PAD%` is filled so that the line has `bytes`.
pub(super) fn bytes(run: &mut Run, who: &str, what: &Value) -> Result<Vec<u8>, String> {
    let side = if run.world.lock().agents.contains_key(who) { Side::Agent } else { Side::Client };
    if let Some(text) = what["text"].as_str() {
        let mut text = text.to_owned();
        for name in names_in(&text) {
            super::script::bind_id(run, who, &name)?;
            let id = run.world.lock().names.captured.get(&name).cloned().unwrap_or_default();
            text = text.replace(&format!("\"{name}\""), &id.to_string());
        }
        let filled = run.world.lock().names.expand(&Value::String(text))?;
        return Ok(filled.as_str().unwrap_or_default().as_bytes().to_vec());
    }
    if let Some(hex) = what["hex"].as_str() {
        let digits: Vec<u32> = hex.chars().filter_map(|digit| digit.to_digit(16)).collect();
        let pairs = digits.chunks(2).map(|pair| pair.iter().fold(0, |sum, digit| sum * 16 + digit));
        return Ok(pairs.map(|byte| u8::try_from(byte).unwrap_or(0)).collect());
    }
    let mut line = match (&what["json"], &what["pad"]) {
        (Value::Null, Value::Null) => return Err(format!("no bytes in {what}")),
        (Value::Null, pad) => {
            let size = what["bytes"].as_u64().and_then(|size| usize::try_from(size).ok());
            padded(run, pad, size.ok_or("pad takes bytes")?, side)?
        }
        (frame, _) => {
            if let Some(name) = frame["id"].as_str().filter(|name| name.starts_with('@')) {
                super::script::bind_id(run, who, name)?;
            }
            run.world.lock().names.fill(frame, side)?.to_string()
        }
    };
    line.push('\n');
    Ok(line.into_bytes())
}

/// A frame in one line of exactly `size` bytes, without its line end.
pub(super) fn padded(run: &Run, frame: &Value, size: usize, side: Side) -> Result<String, String> {
    let text = run.world.lock().names.fill(frame, side)?.to_string();
    let rest = text.len().checked_sub("%PAD%".len()).ok_or("pad has no %PAD%")?;
    let missing = size.checked_sub(rest).ok_or(format!("a frame of {size} bytes is too short"))?;
    Ok(text.replace("%PAD%", &"x".repeat(missing)))
}

fn names_in(text: &str) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for part in text.split("\"@").skip(1) {
        if let Some((name, _)) = part.split_once('"') {
            names.push(format!("@{name}"));
        }
    }
    names
}

/// Writes raw bytes as `who`.
pub(super) fn send(run: &Run, who: &str, bytes: Vec<u8>, what: &Value) -> Result<(), String> {
    let times = what["repeat"].as_u64().and_then(|times| usize::try_from(times).ok()).unwrap_or(1);
    let bytes = bytes.repeat(times);
    let note = shorten(&String::from_utf8_lossy(&bytes), 300);
    run.world.note(&format!("{who} > desk  raw, {} bytes: {note:?}", bytes.len()));
    let mut state = run.world.lock();
    if !state.agents.contains_key(who) {
        drop(state);
        return run.send_line(who, bytes);
    }
    let origin = what["via"].as_str().and_then(|name| run.origins.get(name).copied());
    let holder = what["of"].as_str().and_then(|session| state.holder(who, session));
    let at = origin.or(holder).or_else(|| state.youngest(who));
    let at = at.ok_or(format!("no process of {who} lives"))?;
    // The first bytes one by one where the case says so; the puppet itself writes 64 KiB at a time.
    let single = what["one_by_one"].as_u64().and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
    let single = single.min(bytes.len());
    for byte in &bytes[..single] {
        state.order(at, b'O', vec![*byte])?;
    }
    state.order(at, b'O', bytes[single..].to_vec())?;
    Ok(())
}
