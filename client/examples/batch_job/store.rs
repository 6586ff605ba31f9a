//! Owns the artifacts: a directory for each item, in it a file for each attempt.
//!
//! Invariant: deleting a missing file or directory is success. When an attempt learns that its lease is lost, it
//! deletes only its own file. The files are small, so the blocking calls of the standard library suffice.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

#[derive(Clone)]
pub struct Store(PathBuf);

impl Store {
    pub fn open(root: PathBuf) -> io::Result<Self> {
        fs::create_dir_all(&root)?;
        Ok(Self(root))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Writes an attempt's file for an item, and deletes the files of earlier attempts, which may be dead. Files of
    /// later attempts, which have greater tokens, stay: this attempt may have lost its lease without knowing.
    pub fn write(&self, artifact: &str, token: i64, content: &str) -> io::Result<()> {
        let directory = self.0.join(artifact);
        fs::create_dir_all(&directory)?;
        for entry in fs::read_dir(&directory)? {
            let entry = entry?;
            let attempt = entry.file_name().to_string_lossy().parse::<i64>();
            if attempt.is_ok_and(|attempt| attempt < token) {
                missing_is_fine(fs::remove_file(entry.path()))?;
            }
        }
        fs::write(directory.join(token.to_string()), content)
    }

    /// Deletes an attempt's file, and the item's directory if it is empty then.
    pub fn delete_attempt(&self, artifact: &str, token: i64) -> io::Result<()> {
        let directory = self.0.join(artifact);
        missing_is_fine(fs::remove_file(directory.join(token.to_string())))?;
        match fs::remove_dir(directory) {
            Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => Ok(()),
            end => missing_is_fine(end),
        }
    }

    /// Deletes an item's directory with the files of all attempts.
    pub fn delete(&self, artifact: &str) -> io::Result<()> {
        missing_is_fine(fs::remove_dir_all(self.0.join(artifact)))
    }

    /// Counts the artifacts whose names begin with `prefix`.
    pub fn count(&self, prefix: &str) -> io::Result<usize> {
        let mut count = 0;
        for entry in fs::read_dir(&self.0)? {
            count += usize::from(entry?.file_name().to_string_lossy().starts_with(prefix));
        }
        Ok(count)
    }
}

fn missing_is_fine(end: io::Result<()>) -> io::Result<()> {
    match end {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        end => end,
    }
}
