//! What the clients were told and what happened outside, compared with the database.

use std::collections::{BTreeMap, BTreeSet};

use super::Load;
use super::door::{Session, text};
use super::invariants::{When, violated};
use super::requests::claim;

impl Load {
    /// Nothing that was acknowledged is lost and nothing happened twice; every invariant holds.
    pub async fn assert_whole(&self) {
        self.assert_invariants().await;
        let session = self.door.enter().await;
        self.answers_are_there().await;
        self.money_moved_once(&session).await;
        self.events_came_once(&session).await;
        self.letters_are_as_told(&session).await;
        self.jobs_are_as_told(&session).await;
        self.tokens_grew(&session).await;
    }

    /// Every invariant of the database alone.
    pub async fn assert_invariants(&self) {
        let session = self.door.enter().await;
        let violated = violated(&session, When::Settled).await.unwrap();
        assert!(violated.is_empty(), "violated:\n{}", violated.join("\n"));
    }

    async fn answers_are_there(&self) {
        let answers = self.answers.all();
        assert!(!answers.is_empty(), "nobody was answered");
        self.assert_answered(&answers).await;
    }

    /// These answers, which clients were given, are given again.
    pub async fn assert_answered(&self, answers: &BTreeMap<String, String>) {
        let session = self.door.enter().await;
        for (key, answer) in answers {
            let n: usize = key[1..].parse().unwrap();
            let again = format!(
                "select outcome || ' ' || response_code || ' ' || response_body::text from {}",
                claim(n, "")
            );
            let told = session.text(&again).await.unwrap();
            assert_eq!(told, format!("replayed {answer}"), "{key}");
            let other = format!(
                "select outcome from once.key_claim('requests', '{key}', fingerprint => sha256('other'))"
            );
            let told = session.text(&other).await.unwrap();
            assert_eq!(told, "mismatched", "{key}");
        }
    }

    async fn money_moved_once(&self, session: &Session<'_>) {
        let charges = self.bank.by_request();
        let twice: Vec<_> = charges.iter().filter(|(_, c)| c.len() > 1).collect();
        assert!(twice.is_empty(), "charged twice: {twice:?}");
        let finished = "
            select k.key, s.result #>> '{}' from once.key as k join once.key_step as s on s.key_id = k.id
             where k.scope = 'requests' and k.status in ('c', 'a')";
        for row in session.rows(finished).await.unwrap() {
            let (key, charge) = (text(&row, 0), text(&row, 1).parse().unwrap());
            assert_eq!(charges.get(key), Some(&vec![charge]), "{key}");
        }
    }

    async fn events_came_once(&self, session: &Session<'_>) {
        let accepted = self.receiver.accepted();
        let twice: Vec<_> = accepted.iter().filter(|(_, n)| **n > 1).collect();
        assert!(twice.is_empty(), "under several delivery keys: {twice:?}");
        let undone: Vec<_> = accepted.keys().filter(|e| e.contains("undone")).collect();
        assert!(undone.is_empty(), "rolled back and delivered: {undone:?}");
        let rows = session.rows("select n from posted").await.unwrap();
        let posted: BTreeSet<usize> = rows.iter().map(|r| text(r, 0).parse().unwrap()).collect();
        let acknowledged = self.posted.0.lock().unwrap();
        let lost: Vec<_> = acknowledged.difference(&posted).collect();
        assert!(
            !acknowledged.is_empty() && lost.is_empty(),
            "lost: {lost:?}"
        );
    }

    async fn letters_are_as_told(&self, session: &Session<'_>) {
        let told = &self.letters;
        let emitted = told
            .emitted
            .lock()
            .unwrap()
            .iter()
            .map(usize::to_string)
            .collect();
        let (died, redriven) = (
            told.died.lock().unwrap().clone(),
            told.redriven.lock().unwrap().clone(),
        );
        for (what, query, told) in [
            ("emitted", "select n from frail", emitted),
            ("dead", "select event_id from died", died),
            ("redriven", "select event_id from redriven", redriven),
        ] {
            let rows = session.rows(query).await.unwrap();
            let there: BTreeSet<String> = rows.iter().map(|r| text(r, 0).to_owned()).collect();
            let lost: Vec<_> = told.difference(&there).collect();
            assert!(
                !told.is_empty() && lost.is_empty(),
                "{what} and lost: {lost:?}"
            );
        }
    }

    async fn jobs_are_as_told(&self, session: &Session<'_>) {
        let customers = "select customer from wallet";
        let made = session.rows(customers).await.unwrap();
        let made: BTreeSet<String> = made.iter().map(|r| text(r, 0).to_owned()).collect();
        let lost: Vec<_> = {
            let told = self.promised.made.lock().unwrap();
            told.difference(&made).cloned().collect()
        };
        assert!(lost.is_empty(), "jobs that are lost: {lost:?}");
        let cancelled = "select id from batch_job where status = 'cancelled'";
        let rows = session.rows(cancelled).await.unwrap();
        let cancelled: BTreeSet<String> = rows.iter().map(|r| text(r, 0).to_owned()).collect();
        let kept: Vec<_> = {
            let told = self.promised.cancelled.lock().unwrap();
            told.difference(&cancelled).cloned().collect()
        };
        assert!(kept.is_empty(), "cancellations that are lost: {kept:?}");
        let artifacts = "
            select artifact from batch_item as i join batch_job as j on j.id = i.job_id where j.status = 'done'";
        let rows = session.rows(artifacts).await.unwrap();
        let wanted: BTreeSet<String> = rows.iter().map(|r| text(r, 0).to_owned()).collect();
        let there = self.store.names();
        let (lost, left): (Vec<_>, Vec<_>) = (
            wanted.difference(&there).collect(),
            there.difference(&wanted).collect(),
        );
        assert!(
            lost.is_empty() && left.is_empty(),
            "lost {lost:?}, left {left:?}"
        );
    }

    /// No holder has ever seen a token above the one that the key has now.
    async fn tokens_grew(&self, session: &Session<'_>) {
        let seen = self.receiver.tokens_of_keys();
        for row in session
            .rows("select key, token from once.key where scope = 'requests'")
            .await
            .unwrap()
        {
            let (key, token): (_, i64) = (text(&row, 0), text(&row, 1).parse().unwrap());
            assert!(
                seen.get(key).is_none_or(|largest| *largest <= token),
                "{key}"
            );
        }
    }
}
