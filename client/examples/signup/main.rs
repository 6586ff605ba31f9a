//! A signup whose welcome mail is sent once.
//!
//! `cargo run -p pg-once --example signup -- --database-url postgres://localhost/mydb`, in a database
//! where `CREATE EXTENSION pg_once` was done. The program runs these cases: a double click; an address
//! that is taken; a mail service that answers 503, then does not answer; a mailbox that does not exist; a mailer
//! killed with -9. It fails unless each user whose mailbox exists gets one mail. `signup.rs` and
//! `mailer.rs` are the parts to read.

#[path = "../common/mod.rs"]
#[allow(dead_code, reason = "each story uses a part of it")]
mod common;
mod mailer;
mod signup;

use anyhow::{Result, bail, ensure};
use axum::http::StatusCode;
use clap::Parser;
use pg_once::{Outcome, Scope, Topic};

use common::foreign::{Foreign, Trouble};
use common::http::Http;
use common::worker::{Args, run_until_killed};
use common::{Story, expect, log};
use mailer::{Mailer, PATH};
use signup::{Signups, TABLES};

struct Service {
    story: Story,
    signups: Signups,
    mails: Topic,
    provider: Foreign,
}

#[tokio::main]
async fn main() -> Result<()> {
    log();
    let args = Args::parse();
    if let Some(name) = &args.work_for {
        return send_until_killed(Story::open(&args.database_url, name)?, &args.foreign).await;
    }
    let story = Story::begin(&args.database_url, "signup", TABLES).await?;
    let mails = story.declare("mails").await?;
    let service = Service {
        signups: Signups {
            pool: story.pool.clone(),
            scope: Scope::new(&story.name),
            mails: mails.clone(),
        },
        provider: Foreign::start_with(|_, body| {
            (body["to"] == "nobody@example.org").then_some(StatusCode::UNPROCESSABLE_ENTITY)
        })
        .await?,
        mails,
        story,
    };
    service.double_click().await?;
    service.taken().await?;
    service.provider_in_trouble().await?;
    service.no_such_mailbox().await?;
    service.mailer_killed().await?;
    service.story.end(&[service.mails]).await
}

impl Service {
    /// Sends mails until this number of users have this value of `mail`.
    async fn until(&self, mail: &str, users: usize) -> Result<()> {
        let mailer = Mailer {
            pool: self.story.pool.clone(),
            http: Http::new(&self.provider.url)?,
            dies: false,
        };
        let enough = format!("SELECT count(*) = {users} FROM app_user WHERE mail = '{mail}'");
        let enough = self.story.until(&enough);
        self.story.work(&self.mails, mailer, enough).await?;
        Ok(())
    }

    fn mails_to(&self, email: &str) -> usize {
        let mails = self.provider.effects(PATH);
        mails.iter().filter(|mail| mail.body["to"] == email).count()
    }

    async fn signed_up(&self, email: &str) -> Result<()> {
        let key = format!("session {}/form 1", uuid::Uuid::new_v4());
        let outcome = self.signups.sign_up(&key, email).await?;
        ensure!(matches!(outcome, Outcome::Ran(_)), "{outcome:?}");
        Ok(())
    }

    /// The button is pressed twice at once, and a third time after the answer.
    async fn double_click(&self) -> Result<()> {
        let (key, email) = ("session 1/form 1", "ada@example.org");
        let press = || self.signups.sign_up(key, email);
        let (one, other) = tokio::try_join!(press(), press())?;
        let ran = [&one, &other].map(|o| usize::from(matches!(o, Outcome::Ran(_))));
        expect("a double click: made", ran.iter().sum(), 1)?;
        let third = press().await?;
        ensure!(matches!(third, Outcome::Replayed(_)), "{third:?}");
        self.until("sent", 1).await?;
        expect("a double click: mails", self.mails_to(email), 1)
    }

    async fn taken(&self) -> Result<()> {
        let outcome = self
            .signups
            .sign_up("session 2/form 1", "ada@example.org")
            .await?;
        let Outcome::Aborted(answer) = outcome else {
            bail!("{outcome:?}");
        };
        expect("an address that is taken: answer", answer.code, 409)?;
        self.signed_up("bob@example.org").await?;
        self.until("sent", 2).await?;
        expect(
            "an address that is taken: mails",
            self.mails_to("ada@example.org"),
            1,
        )
    }

    /// The service answers 503, then sends the mail but no answer, then answers.
    async fn provider_in_trouble(&self) -> Result<()> {
        let email = "cyd@example.org";
        let trouble = [Trouble::Refuse(503), Trouble::NoAnswer];
        self.provider.trouble(PATH, &trouble);
        let before = self.provider.requests();
        self.signed_up(email).await?;
        self.until("sent", 3).await?;
        let asked = self.provider.requests() - before;
        ensure!(asked >= 3, "asked {asked} times");
        println!("a service in trouble: asked {asked} times");
        expect("a service in trouble: mails", self.mails_to(email), 1)
    }

    async fn no_such_mailbox(&self) -> Result<()> {
        self.signed_up("nobody@example.org").await?;
        self.until("undeliverable", 1).await?;
        let subscriber = self.mails.default_subscriber();
        let dead = subscriber.dead(&self.story.pool, 10);
        expect("no such mailbox: dead letters", dead.await?.len(), 1)
    }

    /// The mailer is killed after the mail is sent and before it is recorded: no second mail is sent.
    async fn mailer_killed(&self) -> Result<()> {
        let email = "dan@example.org";
        self.signed_up(email).await?;
        run_until_killed(&self.story, &self.provider.url).await?;
        expect("killed: mails", self.mails_to(email), 1)?;
        self.until("sent", 4).await?;
        expect("killed, then sent again: mails", self.mails_to(email), 1)
    }
}

async fn send_until_killed(story: Story, provider: &str) -> Result<()> {
    let mailer = Mailer {
        pool: story.pool.clone(),
        http: Http::new(provider)?,
        dies: true,
    };
    story.work_until_killed("mails", mailer).await
}
