//! The part of `frontdesk doctor` that looks at what is stored: journals, commit log, snapshots,
//! parameters and claim files; and `--repair`. Looking changes nothing.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use anyhow::Context as _;
use nix::fcntl::{Flock, FlockArg};
use serde_json::{Value, json};

use super::doctor::{Finding, Verdict, finding};
use super::time::plural;
use super::{Exit, Failure, Shell, out};
use crate::hold::claim::{claims_dir, locked_inodes};
use crate::log::{self, Checked, Found, Snapshot, What};

/// Journals between two signs of progress.
const PROGRESS_EVERY: usize = 32;
/// Width of the bar of progress, in characters.
const BAR_WIDTH: usize = 24;
/// Damaged places of one journal named on a terminal; `--json` has up to a thousand.
const NAMED_MAX: usize = 10;

/// What was found.
#[derive(Debug, Default)]
pub(super) struct Stored {
    pub(super) findings: Vec<Finding>,
    /// For `--json`: each journal with damage.
    pub(super) damaged: Vec<Value>,
}

/// Looks at everything below the data folder. While a daemon runs, or may run, what it may be writing
/// at this moment is no damage.
pub(super) fn look(shell: &mut Shell, may_run: bool) -> Stored {
    let mut stored = Stored::default();
    let data = shell.paths.data.clone();
    if !data.exists() {
        return stored;
    }
    journals(shell, may_run, &mut stored);
    if !may_run {
        stored.findings.push(commit_log(&data));
    }
    stored.findings.extend(params(&data.join("params")));
    stored.findings.extend(claims());
    stored
}

fn journals(shell: &mut Shell, may_run: bool, stored: &mut Stored) {
    let found: Vec<Found> = log::scan(&shell.paths.sessions()).collect();
    let (mut records, mut bytes, mut damaged, mut unfit) = (0, 0, 0, 0);
    for (index, journal) in found.iter().enumerate() {
        if index % PROGRESS_EVERY == 0 {
            shell.out.progress(&format!("checking journals {}", bar(index, found.len())));
        }
        let checked = match log::check(&journal.path) {
            Ok(checked) => without_what_is_being_written(checked, may_run),
            Err(error) => {
                damaged += 1;
                stored.findings.push(finding("journal", Verdict::Bad, error.to_string()));
                continue;
            }
        };
        records += checked.records;
        bytes += checked.bytes;
        let has_snapshot = Snapshot::path(&journal.path).exists();
        unfit += usize::from(has_snapshot && Snapshot::read(&journal.path).is_none());
        if checked.damage_count > 0 {
            damaged += usize::from(checked.is_damaged());
            stored.findings.push(explained(journal, &checked));
            stored.damaged.push(document(journal, &checked));
        }
    }
    shell.out.progress("");
    let says = format!(
        "{}, {records} records, {bytes} bytes; {damaged} damaged",
        counted(found.len(), "journal")
    );
    let verdict = if damaged == 0 { Verdict::Good } else { Verdict::Warning };
    stored.findings.push(finding("journals", verdict, says));
    if unfit > 0 {
        let says = format!(
            "{} beside a journal that it does not fit: not used, and written anew when the session is used; nothing to do",
            counted(unfit, "snapshot")
        );
        stored.findings.push(finding("snapshots", Verdict::Warning, says));
    }
}

fn counted(count: usize, word: &str) -> String {
    plural(i64::try_from(count).unwrap_or(i64::MAX), word)
}

fn bar(done: usize, all: usize) -> String {
    let full = done * BAR_WIDTH / all.max(1);
    format!("[{}{}] {done} of {all}", "#".repeat(full), "-".repeat(BAR_WIDTH - full))
}

fn without_what_is_being_written(mut checked: Checked, may_run: bool) -> Checked {
    if may_run && checked.damage.last().is_some_and(|last| last.what == What::Torn) {
        checked.damage.pop();
        checked.damage_count -= 1;
    }
    checked
}

/// What is wrong with a journal, what is served all the same, and what to do.
fn explained(journal: &Found, checked: &Checked) -> Finding {
    let places: Vec<String> =
        checked.damage.iter().take(NAMED_MAX).map(ToString::to_string).collect();
    let more = checked.damage_count.saturating_sub(places.len() as u64);
    let more = if more > 0 { format!("; and {more} more") } else { String::new() };
    let what = format!(
        "{}: {} records are served, up to number {}; {}{more}",
        journal.path.display(),
        checked.records,
        checked.last_seq,
        places.join("; "),
    );
    if !checked.is_damaged() {
        return finding(
            "journal",
            Verdict::Good,
            format!("{what}; nothing is lost, nothing to do"),
        );
    }
    let advice = format!(
        "it can be used as it is, but not forked; `frontdesk doctor --repair {}` writes it anew without the damaged lines and keeps the original beside it",
        journal.key
    );
    finding("journal", Verdict::Warning, format!("{what}; {advice}"))
}

fn document(journal: &Found, checked: &Checked) -> Value {
    let places: Vec<Value> = checked
        .damage
        .iter()
        .map(|damage| {
            json!({
                "line": damage.line, "offset": damage.offset, "bytes": damage.bytes,
                "what": damage.what.word(), "loses": damage.what.loses(), "says": damage.to_string(),
            })
        })
        .collect();
    json!({
        "key": journal.key, "path": journal.path, "bytes": checked.bytes,
        "records": checked.records, "lastSeq": checked.last_seq,
        "damageCount": checked.damage_count, "damage": places,
    })
}

fn commit_log(data: &Path) -> Finding {
    let about = "commit log";
    let found = match log::committed(data) {
        Ok(found) => found,
        Err(error) => return finding(about, Verdict::Bad, error.to_string()),
    };
    let mut says =
        format!("{}, {}", counted(found.files, "file"), counted(found.entries, "record"));
    if found.torn_files > 0 {
        says += &format!(
            "; {} with a torn end, which nobody was told of as safe",
            counted(found.torn_files, "file")
        );
    }
    if found.lacking.is_empty() {
        return finding(about, Verdict::Good, format!("{says}; no journal lacks any of them"));
    }
    let records: usize = found.lacking.iter().map(|(_, count)| count).sum();
    says += &format!(
        "; {} of them are not in {} yet: the next start of the daemon puts them there",
        counted(records, "record"),
        counted(found.lacking.len(), "journal"),
    );
    finding(about, Verdict::Warning, says)
}

/// Kept parameters: JSON objects, for the user alone.
fn params(folder: &Path) -> Option<Finding> {
    let entries = fs::read_dir(folder).ok()?;
    let (mut count, mut bad, mut open) = (0, Vec::new(), Vec::new());
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.ends_with(".json") {
            continue;
        }
        count += 1;
        let text = fs::read(entry.path()).unwrap_or_default();
        if !serde_json::from_slice::<Value>(&text).is_ok_and(|value| value.is_object()) {
            bad.push(name.clone());
        }
        if entry.metadata().is_ok_and(|meta| meta.permissions().mode() & 0o077 != 0) {
            open.push(name);
        }
    }
    if !open.is_empty() {
        let names = open.join(", ");
        let says = format!("others may read {names}, which hold secrets; `chmod 600` them");
        return Some(finding("params", Verdict::Bad, says));
    }
    if !bad.is_empty() {
        let says = format!(
            "{} of {count} cannot be read: {}; a client's own load gives new ones",
            bad.len(),
            bad.join(", ")
        );
        return Some(finding("params", Verdict::Warning, says));
    }
    Some(finding("params", Verdict::Good, counted(count, "file")))
}

/// Claim files: one that is locked has to say by whom.
fn claims() -> Option<Finding> {
    let folder = claims_dir(|name| std::env::var_os(name)).ok()?;
    let locked = locked_inodes();
    let (mut held, mut silent) = (0, Vec::new());
    for entry in fs::read_dir(&folder).ok()?.flatten() {
        let Ok(meta) = entry.metadata() else { continue };
        if !meta.is_file() || !locked.contains(&meta.ino()) {
            // The lock is the claim: a file without one is left over, which is usual.
            continue;
        }
        held += 1;
        let text = fs::read(entry.path()).unwrap_or_default();
        if !serde_json::from_slice::<Value>(&text).is_ok_and(|value| value.is_object()) {
            silent.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    if silent.is_empty() {
        return Some(finding("claims", Verdict::Good, format!("{held} held")));
    }
    let says = format!(
        "locked and without a word by whom: {}; they are honoured all the same, and free when that process ends (`lslocks` names it)",
        silent.join(", ")
    );
    Some(finding("claims", Verdict::Warning, says))
}

/// `doctor --repair`: writes damaged journals anew, all of them or the one whose key begins so.
pub(super) fn repair(key: &str, shell: &mut Shell, as_json: bool) -> Result<Exit, Failure> {
    let _home = lock_home(&shell.paths.daemon_lock())?;
    let wanted = |found: &Found| found.key.to_string().starts_with(&key.to_lowercase());
    let all: Vec<Found> = log::scan(&shell.paths.sessions()).collect();
    let found: Vec<&Found> = all.iter().filter(|found| wanted(found)).collect();
    if !key.is_empty() && found.len() != 1 {
        let count = counted(found.len(), "journal");
        return Err(anyhow::anyhow!("failed to repair: {count} of that key; name one whole").into());
    }
    let stamp = (shell.now)().strftime("%Y%m%dT%H%M%SZ").to_string();
    let mut repaired = Vec::new();
    for (index, journal) in found.iter().enumerate() {
        if index % PROGRESS_EVERY == 0 {
            shell.out.progress(&format!("checking journals {}", bar(index, found.len())));
        }
        let checked = log::check(&journal.path).map_err(anyhow::Error::from)?;
        if !checked.is_damaged() {
            continue;
        }
        let kept = log::repair(&journal.path, &stamp).map_err(anyhow::Error::from)?;
        shell.out.progress("");
        if !as_json {
            shell.out.line(&format!(
                "repaired {}: {} records; the original is {}",
                journal.key,
                checked.records,
                kept.display()
            ))?;
        }
        repaired.push(json!({
            "key": journal.key, "path": journal.path, "records": checked.records, "original": kept,
        }));
    }
    shell.out.progress("");
    if as_json {
        shell.out.json(&json!({ "repaired": repaired }).to_string())?;
    } else if repaired.is_empty() {
        let checked = counted(found.len(), "journal");
        shell.out.styled(out::GOOD, &format!("nothing to repair: {checked} checked"))?;
    }
    Ok(Exit::Done)
}

/// No daemon may run on this home meanwhile, and none may start.
fn lock_home(path: &Path) -> Result<Flock<File>, Failure> {
    let folder = path.parent().unwrap_or(path);
    fs::create_dir_all(folder).with_context(|| format!("failed to make {}", folder.display()))?;
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(path);
    let file = file.with_context(|| format!("failed to open {}", path.display()))?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|_| {
        anyhow::anyhow!(
            "failed to repair: a daemon runs on this home; stop it with `frontdesk stop` first"
        )
        .into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_a_bar() {
        assert_eq!(bar(0, 0), format!("[{}] 0 of 0", "-".repeat(BAR_WIDTH)));
        assert_eq!(bar(1, 2).matches('#').count(), BAR_WIDTH / 2);
        assert_eq!(bar(3, 3).matches('-').count(), 0);
    }

    #[test]
    fn parameters_that_cannot_be_read_or_are_open_are_named() {
        let temp = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str, mode: u32| {
            let path = temp.path().join(name);
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        };
        put("a.json", "{}", 0o600);
        assert_eq!(params(temp.path()).unwrap(), finding("params", Verdict::Good, "1 file"));
        put("c.json", "{\0", 0o600);
        let bad = params(temp.path()).unwrap();
        assert!(bad.verdict == Verdict::Warning && bad.says.contains("c.json"), "{bad:?}");
        put("b.json", "{}", 0o644);
        let open = params(temp.path()).unwrap();
        assert!(open.verdict == Verdict::Bad && open.says.contains("b.json"), "{open:?}");
        assert_eq!(params(Path::new("/nonexistent")), None);
    }
}
