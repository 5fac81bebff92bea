//! The last accepted parameters of each session, whole: folders, MCP servers with their secrets,
//! options. They live only here, `data/params/KEY.json`, 0600; the journal has them redacted.
//!
//! Written and read by `session` when a session is made, loaded or resumed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use frontdesk_core::ids::Key;

use super::{LogError, disk};

/// The store of parameters.
#[derive(Clone, Debug)]
pub struct Params {
    folder: PathBuf,
}

impl Params {
    /// Opens the store below `data`.
    ///
    /// # Errors
    /// If its folder cannot be made.
    pub fn open(data: &Path) -> Result<Self, LogError> {
        let folder = data.join("params");
        disk::make_folder(&folder).map_err(LogError::io("make", &folder))?;
        Ok(Self { folder })
    }

    /// Keeps the parameters of a session, in place of earlier ones. Waits for the disk.
    ///
    /// # Errors
    /// If the disk refuses; the earlier ones then stay.
    pub fn write(&self, key: Key, params: &str) -> Result<(), LogError> {
        let path = self.path(key);
        disk::replace(&path, params.as_bytes(), disk::Care::Truth)
            .map_err(LogError::io("write", &path))
    }

    /// The parameters of a session as they were accepted; `None` if there are none.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn read(&self, key: Key) -> Result<Option<String>, LogError> {
        let path = self.path(key);
        match fs::read_to_string(&path) {
            Ok(params) => Ok(Some(params)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(LogError::io("read", &path)(error)),
        }
    }

    /// Forgets the parameters of a session. To have none is no error.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn remove(&self, key: Key) -> Result<(), LogError> {
        let path = self.path(key);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(LogError::io("remove", &path)(error))
            }
            _ => Ok(()),
        }
    }

    fn path(&self, key: Key) -> PathBuf {
        self.folder.join(format!("{key}.json"))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::log::testing::key;

    #[test]
    fn parameters_are_kept_whole_and_for_the_user_alone() {
        let temp = tempfile::tempdir().unwrap();
        let params = Params::open(temp.path()).unwrap();
        assert_eq!(params.read(key(1)).unwrap(), None);
        params.write(key(1), r#"{ "cwd":"/w" }"#).unwrap();
        params.write(key(1), r#"{ "cwd":"/w", "n":1e2 }"#).unwrap();
        assert_eq!(params.read(key(1)).unwrap().unwrap(), r#"{ "cwd":"/w", "n":1e2 }"#);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&params.path(key(1))), 0o600);
        assert_eq!(mode(&params.folder), 0o700);
        assert_eq!(fs::read_dir(&params.folder).unwrap().count(), 1, "no file is left over");
        params.remove(key(1)).unwrap();
        params.remove(key(1)).unwrap();
        assert_eq!(params.read(key(1)).unwrap(), None);
    }

    #[test]
    fn a_refused_write_leaves_the_earlier_parameters() {
        let temp = tempfile::tempdir().unwrap();
        let params = Params::open(temp.path()).unwrap();
        let blocked = params.path(key(2));
        fs::create_dir_all(blocked.join("in the way")).unwrap();
        assert!(params.write(key(2), "{}").is_err());
        assert!(params.read(key(2)).is_err());
        assert_eq!(fs::read_dir(&params.folder).unwrap().count(), 1, "no file is left over");
    }
}
