//! What moves from one cluster to another: files, roles, and transaction ids that are far apart.

use std::path::Path;

use anyhow::{Context, Result};

use crate::builder::SUPERUSER;
use crate::cluster::{Cluster, StopMode};
use crate::place::{copy, free_port};
use crate::programs::run;

/// Past ten million, and the first id on its page of transaction states, so the server begins that page anew.
const FAR: &str = "10027008";

impl Cluster {
    /// Moves this cluster's transaction ids past ten million. Stops and starts the cluster.
    ///
    /// # Errors
    /// If the server or `pg_resetwal` fails.
    pub fn far_ahead(&mut self) -> Result<()> {
        self.stop(StopMode::Fast)?;
        let data = self.data_directory();
        let data = data.to_str().context("the data directory's name")?;
        self.run("pg_resetwal", &["-x", FAR, "-D", data])?;
        self.start()
    }

    /// Copies a file or folder from this cluster's directory into another's, owners and all.
    ///
    /// # Errors
    /// If it is not there.
    pub fn hand_over(&self, name: &str, to: &Self) -> Result<()> {
        copy(&self.directory().join(name), &to.directory().join(name))
    }

    /// Makes this cluster's roles in the other cluster, with their memberships, except the superuser.
    ///
    /// # Errors
    /// If a program fails.
    pub fn copy_roles(&self, to: &Self) -> Result<()> {
        let output = self.run("pg_dumpall", &["--roles-only"])?;
        let wanted = |line: &&str| {
            !line.contains("ROLE postgres")
                && ["CREATE ROLE", "ALTER ROLE", "GRANT"]
                    .iter()
                    .any(|verb| line.starts_with(verb))
        };
        let lines: Vec<&str> = output.stdout.lines().filter(wanted).collect();
        to.psql("postgres", &lines.join("\n"))?;
        Ok(())
    }
}

impl Cluster {
    /// Takes over what `old` has by `pg_upgrade`, which copies the files unless `more` says `--link`. This cluster must
    /// be as `initdb` made it; it runs afterwards and the old cluster does not. What both servers said meanwhile is
    /// returned.
    ///
    /// # Errors
    /// With the words of `pg_upgrade`, if it fails.
    pub fn upgrade_from(&mut self, old: &mut Self, more: &[&str]) -> Result<String> {
        old.stop(StopMode::Fast)?;
        self.stop(StopMode::Fast)?;
        let work = self.directory().join("upgrade");
        std::fs::create_dir(&work)?;
        self.programs().user().own(&work)?;
        let mut command = self.programs().command("pg_upgrade", &work);
        command
            .args(["--retain", "--username", SUPERUSER])
            .args(more)
            .args(["--old-port", &free_port()?.to_string()])
            .args(["--new-port", &free_port()?.to_string()])
            .arg("--socketdir")
            .arg(self.socket_directory())
            .arg("--old-bindir")
            .arg(old.programs().directory())
            .arg("--new-bindir")
            .arg(self.programs().directory())
            .arg("--old-datadir")
            .arg(old.data_directory())
            .arg("--new-datadir")
            .arg(self.data_directory());
        run(&mut command)?;
        // pg_upgrade leaves its logs in a folder with a generated name (before 15: in `work`).
        let logs = self.data_directory().join("pg_upgrade_output.d");
        let mut said = String::new();
        gather(&logs, "pg_upgrade_server.log", &mut said)?;
        self.start()?;
        Ok(said)
    }
}

/// The texts of all files of this name in a folder and those below it.
fn gather(folder: &Path, name: &str, into: &mut String) -> Result<()> {
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.is_dir() {
            gather(&path, name, into)?;
        } else if path.file_name().is_some_and(|n| n == name) {
            into.push_str(&String::from_utf8_lossy(&std::fs::read(&path)?));
        }
    }
    Ok(())
}
