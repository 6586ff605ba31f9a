//! An upload whose processing job is made once.
//!
//! `cargo run -p pg-once --example upload -- --database-url postgres://localhost/mydb`, in a database
//! where `CREATE EXTENSION pg_once` was done. An object store sends at least one notice of each upload. A further
//! notice has the same message id or a new one. The program runs these cases: two copies of a notice at once; a
//! handler that fails; the same content again, and new content; a rendering service in trouble; a file that is no
//! picture; a renderer killed with -9. The program checks that each change of content makes one job, and that each
//! new picture gets one rendition. `upload.rs` and `render.rs` are the parts to read.

#[path = "../common/mod.rs"]
#[allow(dead_code, reason = "each story uses a part of it")]
mod common;
mod render;
mod upload;

use anyhow::{Result, bail, ensure};
use axum::http::StatusCode;
use clap::Parser;
use pg_once::{Handled, Inbox, Topic};

use common::foreign::{Foreign, Trouble};
use common::http::Http;
use common::worker::{Args, run_until_killed};
use common::{Story, expect, log};
use render::{PATH, Renderer};
use upload::{Notice, TABLES, Uploads};

struct Service {
    story: Story,
    uploads: Uploads,
    jobs: Topic,
    renderings: Foreign,
}

#[tokio::main]
async fn main() -> Result<()> {
    log();
    let args = Args::parse();
    if let Some(name) = &args.work_for {
        return render_until_killed(Story::open(&args.database_url, name)?, &args.foreign).await;
    }
    let story = Story::begin(&args.database_url, "upload", TABLES).await?;
    let jobs = story.declare("jobs").await?;
    let service = Service {
        uploads: Uploads {
            pool: story.pool.clone(),
            inbox: Inbox::new(&story.name),
            jobs: jobs.clone(),
        },
        renderings: Foreign::start_with(|_, body| {
            let object = body["object"].as_str().unwrap_or_default();
            object
                .ends_with(".txt")
                .then_some(StatusCode::UNSUPPORTED_MEDIA_TYPE)
        })
        .await?,
        jobs,
        story,
    };
    service.told_twice().await?;
    service.handler_fails().await?;
    service.uploaded_again().await?;
    service.renderer_in_trouble().await?;
    service.no_picture().await?;
    service.renderer_killed().await?;
    service.story.end(&[service.jobs]).await
}

fn notice(message_id: &str, object: &str, etag: &str) -> Notice {
    Notice {
        message_id: message_id.to_owned(),
        object: object.to_owned(),
        etag: etag.to_owned(),
    }
}

impl Service {
    /// Renders until this number of uploads are in this state.
    async fn until(&self, state: &str, uploads: usize) -> Result<()> {
        let renderer = Renderer {
            pool: self.story.pool.clone(),
            http: Http::new(&self.renderings.url)?,
            dies: false,
        };
        let enough = format!("SELECT count(*) = {uploads} FROM upload WHERE state = '{state}'");
        let enough = self.story.until(&enough);
        self.story.work(&self.jobs, renderer, enough).await?;
        Ok(())
    }

    fn renditions(&self, object: &str) -> usize {
        let made = self.renderings.effects(PATH);
        made.iter()
            .filter(|made| made.body["object"] == object)
            .count()
    }

    /// Two calls handle the same notice at the same time. The second call waits for the first and gets its verdict.
    async fn told_twice(&self) -> Result<()> {
        let ada = notice("m-1", "ada.png", "v1");
        let uploaded = || self.uploads.uploaded(&ada);
        let (one, other) = tokio::try_join!(uploaded(), uploaded())?;
        let (Handled::Now(now), Handled::Before(before)) = (match &one {
            Handled::Now(_) => (&one, &other),
            Handled::Before(_) => (&other, &one),
        }) else {
            bail!("one is handled now and one was before, not {one:?} and {other:?}");
        };
        expect("told twice: the same job", now, before)?;
        self.until("rendered", 1).await?;
        expect("told twice: renditions", self.renditions("ada.png"), 1)
    }

    /// The table is missing, so the handler fails; the store sends the notice again.
    async fn handler_fails(&self) -> Result<()> {
        let bob = notice("m-2", "bob.png", "v1");
        let client = self.story.pool.get().await?;
        client
            .batch_execute("ALTER TABLE upload RENAME TO away")
            .await?;
        ensure!(
            self.uploads.uploaded(&bob).await.is_err(),
            "a handler without its table should fail"
        );
        client
            .batch_execute("ALTER TABLE away RENAME TO upload")
            .await?;
        let again = self.uploads.uploaded(&bob).await?;
        ensure!(matches!(again, Handled::Now(_)), "{again:?}");
        self.until("rendered", 2).await?;
        expect(
            "a handler that failed: renditions",
            self.renditions("bob.png"),
            1,
        )
    }

    /// A new message about the same content makes no job. Each change of the content makes one, also a change back.
    async fn uploaded_again(&self) -> Result<()> {
        let same = self
            .uploads
            .uploaded(&notice("m-3", "bob.png", "v1"))
            .await?;
        let Handled::Now(verdict) = same else {
            bail!("a new message, not {same:?}");
        };
        expect("the same content again: a job", verdict.job, None)?;
        self.uploads
            .uploaded(&notice("m-4", "bob.png", "v2"))
            .await?;
        self.until("rendered", 2).await?;
        expect("and new content: renditions", self.renditions("bob.png"), 2)?;
        self.uploads
            .uploaded(&notice("m-8", "bob.png", "v1"))
            .await?;
        self.until("rendered", 2).await?;
        expect(
            "the first content: renditions",
            self.renditions("bob.png"),
            3,
        )
    }

    async fn renderer_in_trouble(&self) -> Result<()> {
        let trouble = [Trouble::NoAnswer, Trouble::Refuse(503)];
        self.renderings.trouble(PATH, &trouble);
        self.uploads
            .uploaded(&notice("m-5", "cyd.png", "v1"))
            .await?;
        self.until("rendered", 3).await?;
        expect(
            "a service in trouble: renditions",
            self.renditions("cyd.png"),
            1,
        )
    }

    async fn no_picture(&self) -> Result<()> {
        self.uploads
            .uploaded(&notice("m-6", "dan.txt", "v1"))
            .await?;
        self.until("failed", 1).await?;
        let subscriber = self.jobs.default_subscriber();
        let dead = subscriber.dead(&self.story.pool, 10);
        expect("no picture: dead letters", dead.await?.len(), 1)
    }

    /// The renderer is killed after the rendition is made and before it is recorded: no second one is made.
    async fn renderer_killed(&self) -> Result<()> {
        self.uploads
            .uploaded(&notice("m-7", "eve.png", "v1"))
            .await?;
        run_until_killed(&self.story, &self.renderings.url).await?;
        expect("killed: renditions", self.renditions("eve.png"), 1)?;
        self.until("rendered", 4).await?;
        expect(
            "killed, then begun again: renditions",
            self.renditions("eve.png"),
            1,
        )
    }
}

async fn render_until_killed(story: Story, renderings: &str) -> Result<()> {
    let renderer = Renderer {
        pool: story.pool.clone(),
        http: Http::new(renderings)?,
        dies: true,
    };
    story.work_until_killed("jobs", renderer).await
}
