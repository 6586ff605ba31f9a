//! One run as a picture: answers over time, one lane for each service process with its kills, and
//! what the network and the database did, and what damage came of it.
//!
//! Invariant: everything in the journal is drawn at its own time; nothing is left out or moved.

use crate::journal::{self, What};
use crate::story::{Kind, Run};
use crate::svg::Svg;

const WIDTH: f64 = 1120.0;
const LEFT: f64 = 150.0;
const RIGHT: f64 = 1076.0;
const CHART_TOP: f64 = 14.0;
const CHART_HEIGHT: f64 = 120.0;
const LANE: f64 = 24.0;
const BIN_MS: f64 = 250.0;

/// The class of an answer's colour.
fn class(outcome: journal::Outcome) -> &'static str {
    use journal::Outcome::{Created, InProgress, Mismatched, Replayed};
    match outcome {
        Created => "made",
        Replayed => "replayed",
        Mismatched => "mismatched",
        InProgress => "waiting",
        _ => "failed",
    }
}

/// The sign of a kill: the number of its point, or K for one by the supervisor.
pub fn sign(points: &[&str], what: &What) -> Option<String> {
    match what {
        What::CrashedAt { point, .. } => {
            let at = points.iter().position(|known| known == point);
            Some(at.map_or_else(|| "?".to_owned(), |at| (at + 1).to_string()))
        }
        What::Killed { .. } => Some("K".to_owned()),
        _ => None,
    }
}

struct Timeline<'a> {
    run: &'a Run,
    kinds: &'static [Kind],
    svg: Svg,
    end_ms: f64,
    y: f64,
}

pub fn draw(run: &Run, kinds: &'static [Kind]) -> String {
    let answered = run.attempts.iter().map(|attempt| attempt.answered_ms);
    let happened = run.events.iter().map(|event| event.at_ms);
    let end_ms = answered.chain(happened).fold(1000.0, f64::max);
    let lanes = run.lanes.len();
    let height = CHART_TOP + CHART_HEIGHT + 16.0 + (lanes + 3) as f64 * LANE + 30.0;
    let mut timeline = Timeline {
        run,
        kinds,
        svg: Svg::new(WIDTH, height),
        end_ms,
        y: CHART_TOP,
    };
    timeline.answers();
    for (lane, name) in run.lanes.iter().enumerate() {
        timeline.service(lane, name);
    }
    timeline.marks("answers lost", "mark net", |what| {
        matches!(what, What::AnswerCut { .. })
    });
    timeline.marks("backends terminated", "mark database", |what| {
        matches!(what, What::BackendTerminated)
    });
    timeline.damage();
    timeline.axis();
    timeline
        .svg
        .finish(&format!("Timeline of {}", run.card.title))
}

impl Timeline<'_> {
    fn x(&self, at_ms: f64) -> f64 {
        LEFT + (RIGHT - LEFT) * (at_ms / self.end_ms).clamp(0.0, 1.0)
    }

    /// Stacked bars: how many answers of which kind clients got in each quarter of a second.
    fn answers(&mut self) {
        let mut bins = vec![vec![0_usize; self.kinds.len()]; (self.end_ms / BIN_MS) as usize + 1];
        for attempt in &self.run.attempts {
            let bin = bins.get_mut((attempt.answered_ms / BIN_MS) as usize);
            let class = class(attempt.outcome);
            let kind = self.kinds.iter().position(|(_, known)| *known == class);
            if let Some(count) = bin.zip(kind).and_then(|(bin, kind)| bin.get_mut(kind)) {
                *count += 1;
            }
        }
        let tallest = bins
            .iter()
            .map(|bin| bin.iter().sum::<usize>())
            .max()
            .unwrap_or_default();
        let per_second = (tallest as f64 * 1000.0 / BIN_MS / 50.0).ceil().max(1.0) * 50.0;
        let bottom = CHART_TOP + CHART_HEIGHT;
        for share in [0.0, 0.5, 1.0] {
            let y = bottom - CHART_HEIGHT * share;
            self.svg.line((LEFT, y), (RIGHT, y), "grid");
            self.svg.text(
                (LEFT - 8.0, y + 3.5),
                "scale",
                &format!("{:.0}", per_second * share),
            );
        }
        self.svg.text(
            (0.0, CHART_TOP + CHART_HEIGHT / 2.0 - 4.0),
            "label",
            "answers",
        );
        self.svg.text(
            (0.0, CHART_TOP + CHART_HEIGHT / 2.0 + 10.0),
            "label",
            "per second",
        );
        let width = (self.x(BIN_MS) - LEFT - 0.8).max(0.6);
        for (at, bin) in bins.iter().enumerate() {
            let mut y = bottom;
            for (count, (_, class)) in bin.iter().zip(self.kinds).filter(|(count, _)| **count > 0) {
                let height = CHART_HEIGHT * (*count as f64 * 1000.0 / BIN_MS) / per_second;
                y -= height;
                self.svg
                    .rect((self.x(at as f64 * BIN_MS), y), (width, height), class);
            }
        }
        self.y = bottom + 16.0;
    }

    /// A bar while the process lives, a badge where it is killed.
    fn service(&mut self, lane: usize, name: &str) {
        self.row(name);
        let (top, middle) = (self.y + 7.0, self.y + LANE / 2.0);
        let points = &self.run.points;
        let mut up_since = None;
        let mut badges = Vec::new();
        for event in &self.run.events {
            match &event.what {
                What::Up { lane: up } if *up == lane => up_since = Some(event.at_ms),
                What::Ended { lane: down } if *down == lane => {
                    if let Some(since) = up_since.take() {
                        self.alive(since, event.at_ms, top);
                    }
                }
                What::CrashedAt { lane: down, .. } | What::Killed { lane: down }
                    if *down == lane =>
                {
                    if let Some(since) = up_since.take() {
                        self.alive(since, event.at_ms, top);
                    }
                    badges.push(event);
                }
                _ => {}
            }
        }
        if let Some(since) = up_since {
            self.alive(since, self.end_ms, top);
        }
        for event in badges {
            let class = if matches!(event.what, What::Killed { .. }) {
                "kill outside"
            } else {
                "kill"
            };
            let sign = sign(points, &event.what).unwrap_or_default();
            let title = match &event.what {
                What::CrashedAt { point, .. } => {
                    format!("kill -9 at {point}, {:.2} s", event.at_ms / 1000.0)
                }
                _ => format!("kill -9 by the supervisor, {:.2} s", event.at_ms / 1000.0),
            };
            self.svg
                .badge((self.x(event.at_ms), middle), class, &sign, &title);
        }
        self.y += LANE;
    }

    fn alive(&mut self, from_ms: f64, to_ms: f64, top: f64) {
        let x = self.x(from_ms);
        self.svg.rect(
            (x, top),
            ((self.x(to_ms) - x).max(0.5), LANE - 14.0),
            "alive",
        );
    }

    fn row(&mut self, name: &str) {
        self.svg
            .text((0.0, self.y + LANE / 2.0 + 4.0), "label", name);
    }

    fn marks(&mut self, name: &str, class: &str, wanted: fn(&What) -> bool) {
        let events = self.run.events.iter().filter(|event| wanted(&event.what));
        let times: Vec<f64> = events.map(|event| event.at_ms).collect();
        self.ticks(name, class, &times);
    }

    fn damage(&mut self) {
        let times = &self.run.damage.at_ms;
        let class = if times.is_empty() { "none" } else { "damage" };
        self.svg
            .rect((LEFT, self.y + 1.0), (RIGHT - LEFT, LANE - 2.0), class);
        self.ticks(self.run.damage.name, "mark double", times);
    }

    /// A row of marks with their number at its end.
    fn ticks(&mut self, name: &str, class: &str, times: &[f64]) {
        self.row(name);
        for at_ms in times {
            self.svg
                .tick(self.x(*at_ms), (self.y + 5.0, self.y + LANE - 5.0), class);
        }
        self.svg.text(
            (RIGHT + 10.0, self.y + LANE / 2.0 + 4.0),
            "count",
            &times.len().to_string(),
        );
        self.y += LANE;
    }

    fn axis(&mut self) {
        let seconds = self.end_ms / 1000.0;
        let step = if seconds > 60.0 {
            10
        } else if seconds > 16.0 {
            5
        } else {
            2
        };
        let mut at = 0;
        while f64::from(at) <= seconds {
            let x = self.x(f64::from(at) * 1000.0);
            self.svg
                .line((x, CHART_TOP), (x, self.y + 2.0), "grid upright");
            self.svg
                .text((x, self.y + 16.0), "second", &format!("{at} s"));
            at += step;
        }
        let over = self
            .run
            .events
            .iter()
            .find(|event| matches!(event.what, What::LoadOver));
        if let Some(over) = over {
            let x = self.x(over.at_ms);
            self.svg.line((x, CHART_TOP), (x, self.y + 2.0), "over");
        }
    }
}
