//! Where Frontdesk keeps its files.
//!
//! `FRONTDESK_HOME`, when set, holds everything: `config.toml`, `data/`, `run/`. Unset: the XDG
//! folders.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The folders of one Frontdesk home.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths {
    /// The configuration file; it need not exist.
    pub config: PathBuf,
    /// Journals, spools, logs: what must survive a reboot.
    pub data: PathBuf,
    /// Sockets and process records: what must not.
    pub run: PathBuf,
}

/// Why the folders cannot be named.
#[derive(Debug, thiserror::Error)]
pub enum PathsError {
    /// Neither `FRONTDESK_HOME` nor `HOME` is set.
    #[error("failed to find a home folder: set FRONTDESK_HOME or HOME")]
    NoHome,
    /// The home is not an absolute path.
    #[error("failed to use {0} as the home folder: it is not an absolute path")]
    Relative(PathBuf),
}

impl Paths {
    /// Names the folders from the environment, read through `var` so that tests need none.
    ///
    /// # Errors
    /// If there is no home folder, or a relative one.
    pub fn from_env(var: impl Fn(&str) -> Option<OsString>) -> Result<Self, PathsError> {
        let var = |name: &str| var(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        if let Some(home) = var("FRONTDESK_HOME") {
            return Self::in_home(&home);
        }
        let home = var("HOME").ok_or(PathsError::NoHome)?;
        let xdg = |name: &str, default: &str| {
            var(name).filter(|path| path.is_absolute()).unwrap_or_else(|| home.join(default))
        };
        let data = xdg("XDG_DATA_HOME", ".local/share").join("frontdesk");
        Ok(Self {
            config: xdg("XDG_CONFIG_HOME", ".config").join("frontdesk/config.toml"),
            run: var("XDG_RUNTIME_DIR")
                .filter(|path| path.is_absolute())
                .map_or_else(|| data.join("run"), |path| path.join("frontdesk")),
            data,
        })
    }

    /// The folders below one home.
    ///
    /// # Errors
    /// If the home is relative.
    pub fn in_home(home: &Path) -> Result<Self, PathsError> {
        if !home.is_absolute() {
            return Err(PathsError::Relative(home.to_path_buf()));
        }
        Ok(Self {
            config: home.join("config.toml"),
            data: home.join("data"),
            run: home.join("run"),
        })
    }

    /// The daemon's unix socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.run.join("frontdesk.sock")
    }

    /// The file a running daemon holds locked; it holds the daemon's pid.
    #[must_use]
    pub fn daemon_lock(&self) -> PathBuf {
        self.run.join("daemon.lock")
    }

    /// The folder of holders' sockets and records, one folder an instance.
    #[must_use]
    pub fn instances(&self) -> PathBuf {
        self.run.join("instances")
    }

    /// The folder of spools and ledgers, one folder an instance.
    #[must_use]
    pub fn spools(&self) -> PathBuf {
        self.data.join("instances")
    }

    /// The folder of journals.
    #[must_use]
    pub fn sessions(&self) -> PathBuf {
        self.data.join("sessions")
    }

    /// The folder of the commit log.
    #[must_use]
    pub fn commit(&self) -> PathBuf {
        self.data.join("commit")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frontdesk_home_holds_everything() {
        let paths =
            Paths::from_env(|name| (name == "FRONTDESK_HOME").then(|| "/x".into())).unwrap();
        assert_eq!(paths.config, Path::new("/x/config.toml"));
        assert_eq!(paths.socket(), Path::new("/x/run/frontdesk.sock"));
    }

    #[test]
    fn the_xdg_folders_serve_otherwise() {
        let env = |name: &str| match name {
            "HOME" => Some("/h".into()),
            "XDG_RUNTIME_DIR" => Some("/run/user/1".into()),
            "XDG_DATA_HOME" => Some("relative".into()),
            _ => None,
        };
        let paths = Paths::from_env(env).unwrap();
        assert_eq!(paths.run, Path::new("/run/user/1/frontdesk"));
        assert_eq!(paths.data, Path::new("/h/.local/share/frontdesk"));
        assert_eq!(paths.config, Path::new("/h/.config/frontdesk/config.toml"));
    }

    #[test]
    fn a_relative_or_missing_home_is_refused() {
        assert!(matches!(Paths::from_env(|_| None), Err(PathsError::NoHome)));
        assert!(matches!(Paths::in_home(Path::new("x")), Err(PathsError::Relative(_))));
    }
}
