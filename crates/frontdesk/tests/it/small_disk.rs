//! A real, small file system that fills up: a tmpfs of fixed size.
//!
//! Mounted directly where that is allowed (root, as in many containers), else inside a user and mount
//! namespace of a helper process and reached through `/proc/PID/root`. Where neither works the test
//! fails and says what to allow; `FRONTDESK_TEST_NO_MOUNT=1` leaves such tests out, loudly.
//! `FRONTDESK_TEST_MOUNT=namespace` takes the second way also where the first one works.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// Name of the file that fills the disk.
const FILLER: &str = "filler";
/// How long files of ended processes may stay open.
const CLOSED_WITHIN: Duration = Duration::from_secs(60);

/// A mounted file system; gone when this is dropped.
#[derive(Debug)]
pub(crate) struct SmallDisk {
    at: PathBuf,
    helper: Option<Helper>,
}

/// A shell in a namespace of its own.
#[derive(Debug)]
struct Helper {
    child: Child,
    said: BufReader<ChildStdout>,
}

impl Helper {
    fn start() -> Result<Self, String> {
        let mut child = Command::new("unshare")
            .args(["--user", "--map-root-user", "--mount", "sh"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .map_err(|error| format!("unshare does not start: {error}"))?;
        let said = BufReader::new(child.stdout.take().ok_or("no stdout")?);
        Ok(Self { child, said })
    }

    fn run(&mut self, command: &str) -> Result<(), String> {
        let stdin = self.child.stdin.as_mut().ok_or("no stdin")?;
        let told = stdin.write_all(format!("{command}; echo $?\n").as_bytes());
        told.and_then(|()| stdin.flush()).map_err(|error| error.to_string())?;
        let mut line = String::new();
        self.said.read_line(&mut line).map_err(|error| error.to_string())?;
        if line.trim() == "0" { Ok(()) } else { Err(format!("{command:?} ended with {line:?}")) }
    }
}

impl SmallDisk {
    /// Lays a file system of `mib` MiB at `folder`, which must be empty or missing. `None` if such
    /// tests are to be left out.
    pub(crate) fn lay(folder: &Path, mib: u32) -> Option<Self> {
        if std::env::var_os("FRONTDESK_TEST_NO_MOUNT").is_some_and(|value| value == "1") {
            eprintln!("LEFT OUT: FRONTDESK_TEST_NO_MOUNT=1, so nothing is tested on a full disk");
            return None;
        }
        let options = format!("size={mib}m,mode=0700");
        let forced = std::env::var_os("FRONTDESK_TEST_MOUNT").is_some_and(|way| way == "namespace");
        let direct = if forced { Err("not tried".to_owned()) } else { direct(folder, &options) };
        let Err(direct) = direct else {
            return Some(Self { at: folder.to_path_buf(), helper: None });
        };
        match in_namespace(folder, &options) {
            Ok((at, helper)) => Some(Self { at, helper: Some(helper) }),
            Err(namespace) => panic!(
                "failed to mount a small file system, neither directly ({direct}) nor in a user \
                 namespace ({namespace}); run the tests as root, or allow user namespaces \
                 (kernel.unprivileged_userns_clone=1, kernel.apparmor_restrict_unprivileged_userns=0), \
                 or set FRONTDESK_TEST_NO_MOUNT=1 to leave out what needs one"
            ),
        }
    }

    /// Takes all the space there is.
    pub(crate) fn fill(&self) {
        let path = self.at.join(FILLER);
        let mut file = File::options().create(true).append(true).open(path).unwrap();
        for size in [1 << 20, 64 << 10, 4 << 10, 1] {
            while file.write(&vec![b'x'; size]).is_ok_and(|written| written > 0) {}
        }
    }

    /// Gives the space back.
    pub(crate) fn free(&self) {
        fs::remove_file(self.at.join(FILLER)).unwrap();
    }

    /// Lets nothing be written; nothing may be open for writing. Files of a process that has just
    /// ended may be for a moment: the kernel closes them behind its end.
    pub(crate) fn set_read_only(&mut self, read_only: bool) {
        let way = if read_only { "ro" } else { "rw" };
        let from = Instant::now();
        while let Err(error) = self.remount(way) {
            assert!(from.elapsed() < CLOSED_WITHIN, "{error}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn remount(&mut self, way: &str) -> Result<(), String> {
        match &mut self.helper {
            Some(helper) => {
                let inside = inside(&self.at);
                helper.run(&format!("mount -o remount,{way} '{}'", inside.display()))
            }
            None => {
                let at = self.at.display().to_string();
                mount(&["-o", &format!("remount,{way}"), &at])
            }
        }
    }
}

/// The path of a folder below `/proc/PID/root` as the helper sees it.
fn inside(at: &Path) -> PathBuf {
    Path::new("/").join(at.components().skip(4).collect::<PathBuf>())
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        match &mut self.helper {
            Some(helper) => {
                let _ = helper.child.kill();
                let _ = helper.child.wait();
            }
            None => {
                let _ = Command::new("umount").arg("-l").arg(&self.at).status();
            }
        }
    }
}

fn mount(arguments: &[&str]) -> Result<(), String> {
    let done = Command::new("mount").args(arguments).output();
    let done = done.map_err(|error| format!("mount does not start: {error}"))?;
    let said = String::from_utf8_lossy(&done.stderr).trim().to_owned();
    if done.status.success() { Ok(()) } else { Err(said) }
}

fn direct(folder: &Path, options: &str) -> Result<(), String> {
    fs::create_dir_all(folder).map_err(|error| error.to_string())?;
    mount(&["-t", "tmpfs", "-o", options, "tmpfs", &folder.display().to_string()])
}

/// Mounts where only the helper and who goes through it can see it, and puts a link to it.
fn in_namespace(folder: &Path, options: &str) -> Result<(PathBuf, Helper), String> {
    let mut helper = Helper::start()?;
    let place = folder.with_extension("disk");
    fs::create_dir_all(&place).map_err(|error| error.to_string())?;
    helper.run(&format!("mount -t tmpfs -o {options} tmpfs '{}'", place.display()))?;
    let through = PathBuf::from(format!("/proc/{}/root{}", helper.child.id(), place.display()));
    File::create(through.join("probe")).map_err(|error| format!("not reached: {error}"))?;
    if place.join("probe").exists() {
        return Err("the mount is no mount of its own".to_owned());
    }
    fs::remove_file(through.join("probe")).map_err(|error| error.to_string())?;
    if folder.exists() {
        fs::remove_dir(folder).map_err(|error| error.to_string())?;
    }
    std::os::unix::fs::symlink(&through, folder).map_err(|error| error.to_string())?;
    Ok((through, helper))
}
