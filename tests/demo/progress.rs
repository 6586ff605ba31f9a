//! What is seen while a run works: a bar on a terminal, a line every few seconds elsewhere.

use std::io::IsTerminal;
use std::sync::Arc;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::journal::Journal;

const LINE_EVERY: Duration = Duration::from_secs(5);

pub struct Progress {
    bar: ProgressBar,
    /// What is counted, such as "orders".
    unit: &'static str,
    title: &'static str,
    journal: Arc<Journal>,
    visible: bool,
}

impl Progress {
    pub fn new(
        title: &'static str,
        (count, unit): (usize, &'static str),
        journal: Arc<Journal>,
    ) -> Self {
        let visible = std::io::stderr().is_terminal();
        let bar = if visible {
            ProgressBar::new(count as u64)
        } else {
            ProgressBar::hidden()
        };
        bar.set_length(count as u64);
        let template = format!("  {{prefix:<34}} [{{bar:30}}] {{pos:>5}}/{{len}} {unit}  {{msg}}");
        if let Ok(style) = ProgressStyle::with_template(&template) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_prefix(title);
        Self {
            bar,
            unit,
            title,
            journal,
            visible,
        }
    }

    pub fn one_done(&self) {
        self.bar.inc(1);
    }

    fn trouble(&self) -> String {
        format!(
            "{} kills, {} retries",
            self.journal.kills(),
            self.journal.retries()
        )
    }

    /// Keeps the words beside the bar fresh, until dropped.
    pub async fn tell(&self) {
        let pause = if self.visible {
            Duration::from_millis(200)
        } else {
            LINE_EVERY
        };
        loop {
            tokio::time::sleep(pause).await;
            if self.visible {
                self.bar.set_message(self.trouble());
            } else {
                self.line();
            }
        }
    }

    fn line(&self) {
        let (done, all) = (self.bar.position(), self.bar.length().unwrap_or_default());
        eprintln!(
            "  {:<34} {done:>5}/{all} {}  {}",
            self.title,
            self.unit,
            self.trouble()
        );
    }

    pub fn finish(&self) {
        if self.visible {
            self.bar.finish_with_message(self.trouble());
        } else {
            self.line();
        }
    }
}
