//! Owns a signup: the user, the event that asks for the mail, and the answer, all in one transaction.

use deadpool_postgres::Pool;
use pg_once::{Done, EmitOptions, Error, Failure, Json, Lease, Outcome, Response, Scope, Topic};
use serde_json::json;

pub const TABLES: &str = "CREATE TABLE app_user (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, \
    email text NOT NULL UNIQUE, mail text NOT NULL DEFAULT 'pending')";
const INSERT: &str =
    "INSERT INTO app_user (email) VALUES ($1) ON CONFLICT (email) DO NOTHING RETURNING id";

#[derive(Clone)]
pub struct Signups {
    pub pool: Pool,
    pub scope: Scope,
    pub mails: Topic,
}

impl Signups {
    /// Does the work of `POST /signups`. Nobody is logged in yet, so the key begins with the session, not a user.
    pub async fn sign_up(&self, key: &str, email: &str) -> Result<Outcome, Error> {
        self.scope
            .key(key)
            .run(&self.pool)
            .request(Json::of(&json!({"email": email}))?)
            .run(|lease| self.make(lease, email))
            .await
    }

    async fn make(&self, lease: Lease, email: &str) -> Result<Done, Failure> {
        let mut client = self.pool.get().await?;
        let transaction = client.transaction().await?;
        let Some(row) = transaction.query_opt(INSERT, &[&email]).await? else {
            // An earlier request with another key took the address: no user and no mail are made.
            let taken = Response::new(409).with_body(&json!({"title": "that address is taken"}))?;
            return Err(Failure::Abort(taken));
        };
        let user: i64 = row.try_get(0)?;
        let welcome = Json::of(&json!({"user": user, "to": email, "template": "welcome"}))?;
        self.mails
            .emit(&transaction, &welcome, &EmitOptions::new())
            .await?;
        let answer = Response::new(201).with_body(&json!({"user": user}))?;
        lease.complete(&transaction, &answer).await?;
        transaction.commit().await?;
        Ok(Done::Stored(answer))
    }
}
