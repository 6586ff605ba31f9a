//! The backoff: min(cap, base * 2^(n-1)) times a factor between 0.5 and 1 that spreads.

use crate::stage::Stage;

/// Seconds until the next attempt of each row.
fn waits(rows: &str) -> Vec<f64> {
    rows.lines()
        .map(|line| line.split('|').nth(2).unwrap().parse().unwrap())
        .collect()
}

/// Names of so many events.
fn names(count: usize) -> String {
    let names: Vec<String> = (0..count).map(|i| format!("e{i}")).collect();
    names.join(" ")
}

#[tokio::test]
async fn each_failure_doubles_the_wait_up_to_the_cap_and_jitter_spreads_it() {
    let stage =
        Stage::open(r#"{"backoff_base": "10 s", "backoff_cap": "60 s", "max_attempts": 100}"#)
            .await;
    stage.emit(&names(300)).await;
    for (attempt, longest) in [(1, 10.0), (2, 20.0), (3, 40.0), (4, 60.0), (5, 60.0)] {
        stage.clock(&format!("{attempt} hours")).await;
        let token = stage.take(1000).await.token;
        let waits = waits(&stage.nack(token, "", "").await);
        assert_eq!(waits.len(), 300);
        let (least, most) = (
            waits.iter().copied().fold(f64::MAX, f64::min),
            waits.iter().copied().fold(0.0, f64::max),
        );
        assert!(
            least >= longest * 0.5 && most <= longest,
            "{attempt}: {least} to {most}"
        );
        // Of 300, one in each outer tenth is missing once in 10^13 runs.
        assert!(
            least < longest * 0.55 && most > longest * 0.95,
            "{attempt}: {least} to {most}"
        );
    }
}
