//! The recipe for pg_cron (docs/how-to/schedule.md), with the real one where the server has it.

use crate::world::{JOBS, claim, show, until};
use pg_once_tests::Cluster;

/// The statements of the recipe that are meant for pg_cron.
fn recipe() -> String {
    let text = include_str!("../../../docs/how-to/schedule.md");
    let begin = text.find("```sql pg_cron\n").unwrap() + "```sql pg_cron\n".len();
    let end = text[begin..].find("```").unwrap();
    text[begin..begin + end].to_owned()
}

#[tokio::test]
async fn pg_cron_sweeps_by_the_recipe() {
    let plain = Cluster::launch().unwrap();
    let library = plain.run("pg_config", &["--pkglibdir"]).unwrap().stdout;
    if !std::path::Path::new(library.trim())
        .join("pg_cron.so")
        .exists()
    {
        let version = plain.version();
        eprintln!(
            "NOT TESTED: this server ({version}) has no pg_cron (Debian: postgresql-{version}-cron)"
        );
        // The server of `make test-assert` is our own build.
        let built = plain.run("pg_config", &["--configure"]).unwrap().stdout;
        assert!(
            version != 15 || built.contains("--enable-cassert"),
            "pg_cron is to be had for 15: sudo apt-get install postgresql-15-cron"
        );
        return;
    }
    drop(plain);
    let cluster = Cluster::builder()
        .setting("shared_preload_libraries", "pg_cron")
        .setting("cron.database_name", "postgres")
        .launch()
        .unwrap();
    let client = cluster
        .create_database_with_extension("shop")
        .await
        .unwrap();
    show(&client, JOBS).await;
    claim(&client, 1, 100, "1 us").await;
    let admin = cluster.connect("postgres").await.unwrap();
    show(&admin, "create extension pg_cron").await;
    // pg_cron runs what is due each minute; a second is enough to see that it runs.
    show(&admin, &recipe()).await;
    let job = "select count(*), bool_and(active), bool_and(command ~ 'once.sweep_all'), min(database) from cron.job";
    assert_eq!(show(&admin, job).await, "1|t|t|shop");
    let begin = std::time::Instant::now();
    let swept = "select count(*) from job where status = 'ready'";
    while show(&client, swept).await != "100" {
        assert!(
            begin.elapsed().as_secs() < 130,
            "{}",
            show(&admin, "select * from cron.job_run_details").await
        );
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    }
    until(
        &admin,
        "select status from cron.job_run_details where status = 'succeeded' limit 1",
        "succeeded",
    )
    .await;
    assert_eq!(
        show(
            &client,
            "select done, served_by ~ 'cron' from once.janitor_status() where machine = 'job'"
        )
        .await,
        "100|t"
    );
}
