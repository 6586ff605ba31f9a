//! Many databases behind PgBouncer, and the script that moves them between clusters: what its test and the demo share.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::cluster::Cluster;
use crate::pooler::PgBouncer;
use crate::programs::Programs;

const SCRIPT: &str = include_str!("../../sql/examples/shards/shards.sh");

impl PgBouncer {
    /// Gives each of these databases a line of its own, as the script needs it, and no other database one.
    ///
    /// # Errors
    /// If the file cannot be written, or the pooler does not read it.
    pub async fn map(
        &self,
        cluster: &Cluster,
        names: impl IntoIterator<Item = String>,
    ) -> Result<()> {
        let file = self.directory().join("pgbouncer.ini");
        let settings = std::fs::read_to_string(&file)?;
        let every = format!("* = host=127.0.0.1 port={}\n", cluster.port());
        let lines = names
            .into_iter()
            .map(|name| format!("{name}{}", &every[1..]));
        let lines: String = lines.collect();
        std::fs::write(&file, settings.replace(&every, &lines))?;
        cluster.programs().user().own(&file)?;
        let admin = self.connect("pgbouncer").await?;
        admin.simple_query("RELOAD").await?;
        Ok(())
    }
}

impl Cluster {
    /// Where a split puts the new cluster, which is to have this port.
    #[must_use]
    pub fn split_directory(&self, port: u16) -> PathBuf {
        self.directory().join(format!("split_{port}"))
    }

    /// The script with these words as an operator starts it, as the OS user of the servers, in a process group of its
    /// own; `programs` are those on its PATH, and the ports those of the clusters from and to which it moves.
    ///
    /// # Errors
    /// If the script cannot be written.
    pub fn shards_script(
        &self,
        programs: &Programs,
        pooler: &PgBouncer,
        words: &str,
        ports: [u16; 2],
    ) -> Result<Command> {
        std::fs::write(self.directory().join("shards.sh"), SCRIPT)?;
        let mut command = programs.command("/bin/bash", self.directory());
        let data = self.split_directory(ports[1]);
        let [from, to] = ports.map(|port| format!("127.0.0.1:{port}"));
        command
            .env("PGUSER", "postgres")
            .env(
                "PATH",
                format!("{}:/usr/bin:/bin", programs.directory().display()),
            )
            .arg("shards.sh")
            .args(words.split_whitespace())
            .args(["--from", &from, "--to", &to])
            .args(["--pooler", &format!("127.0.0.1:{}", pooler.port())])
            .arg("--map")
            .arg(pooler.directory().join("pgbouncer.ini"))
            .process_group(0);
        if words.starts_with("split") {
            let socket = self.socket_directory();
            command.arg("--data").arg(data);
            command
                .arg("--options")
                .arg(format!("-k {}", socket.display()));
        }
        Ok(command)
    }
}
