//! What is left of instances in a home: their folders, and the processes that carry a mark. It only
//! looks; `frontdesk_core::sweep` decides, and [`super::end_recorded`] ends.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use frontdesk_core::ids::is_path_safe;
use frontdesk_core::sweep::{Holder, Marked, Traces};
use nix::unistd::getuid;

use super::{MARK, ProcessId, alive, boot_id, each_process, marked, stat};
use crate::hold::record::Record;

/// Most of an environment that is read for a mark, in bytes. The kernel's own limit for arguments and
/// environment is 6 MiB.
const ENVIRONMENT_BYTES_MAX: u64 = 8 << 20;

/// The instances of which a home has a folder: below `run/instances` (`runs`), below `data/instances`
/// (`spools`), or both. Names that no instance may have are left out.
///
/// # Errors
/// If a folder that is there cannot be read.
pub fn instance_names(runs: &Path, spools: &Path) -> io::Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for folder in [runs, spools] {
        let entries = match fs::read_dir(folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        for entry in entries {
            let entry = entry?;
            if let Ok(name) = entry.file_name().into_string()
                && is_path_safe(&name)
                && entry.file_type().is_ok_and(|kind| kind.is_dir())
            {
                names.insert(name);
            }
        }
    }
    Ok(names)
}

/// What there is of one instance, by its folder below `run/instances` and its mark. A known one is not
/// looked at.
///
/// # Errors
/// If the processes of this machine cannot be listed, or the kernel does not tell its boot.
pub fn traces(run_dir: &Path, name: &str, is_known: bool) -> io::Result<Traces> {
    if is_known {
        let holder = Holder::Unrecorded;
        return Ok(Traces { is_known, has_run: true, holder, is_marked: false });
    }
    let holder = match Record::read(run_dir).ok().flatten() {
        None => Holder::Unrecorded,
        Some(record) if record.boot_id != boot_id()? => Holder::OtherBoot,
        Some(record) if alive(&record.holder) => Holder::Lives,
        Some(_) => Holder::Gone,
    };
    let is_marked = !marked(name)?.is_empty();
    Ok(Traces { is_known, has_run: run_dir.is_dir(), holder, is_marked })
}

/// All living processes of this user that carry the mark of some instance, whatever home it is of.
///
/// # Errors
/// If the processes of this machine cannot be listed.
pub fn all_marked() -> io::Result<Vec<Marked>> {
    let own_uid = getuid().as_raw();
    let mut found = Vec::new();
    each_process(|pid| {
        let Some(stat) = stat(pid).filter(|stat| !stat.is_dead()) else { return };
        if !fs::metadata(format!("/proc/{pid}")).is_ok_and(|it| it.uid() == own_uid) {
            return;
        }
        if let Some(mark) = mark_of(pid) {
            let process = ProcessId { pid, birth: stat.birth };
            let leader = super::stat(stat.session).filter(|leader| !leader.is_dead());
            let is_held = leader.is_some() && mark_of(stat.session).is_none();
            found.push(Marked { process, mark, is_held });
        }
    })?;
    Ok(found)
}

fn mark_of(pid: i32) -> Option<String> {
    let mut block = Vec::new();
    let file = File::open(format!("/proc/{pid}/environ")).ok()?;
    file.take(ENVIRONMENT_BYTES_MAX).read_to_end(&mut block).ok()?;
    let entries = block.split(|byte| *byte == 0);
    let value =
        entries.filter_map(|it| it.strip_prefix(MARK.as_bytes())?.strip_prefix(b"=")).next();
    value.and_then(|value| String::from_utf8(value.to_vec()).ok())
}
