//! Unit tests of src/interval.rs.

#![allow(clippy::unwrap_used)] // a test may panic

use super::*;

fn wire(micros: i64, days: i32, months: i32) -> Vec<u8> {
    [
        micros.to_be_bytes().as_slice(),
        &days.to_be_bytes(),
        &months.to_be_bytes(),
    ]
    .concat()
}

#[test]
fn a_duration_survives_the_way_out_and_back_to_the_microsecond() {
    for duration in [
        Duration::ZERO,
        Duration::from_micros(1),
        Duration::from_millis(1500),
        Duration::from_secs(60 * 60 * 24 * 400),
    ] {
        let back = Interval::decode(&Interval(duration).encode()).unwrap();
        assert_eq!(back.0, duration);
    }
}

#[test]
fn days_and_months_count_as_the_server_counts_them() {
    let got = Interval::decode(&wire(1, 2, 1)).unwrap().0;
    assert_eq!(
        got,
        Duration::from_secs(32 * 86_400) + Duration::from_micros(1)
    );
}

#[test]
fn a_negative_interval_is_zero_and_a_huge_duration_is_the_largest_interval() {
    assert_eq!(Interval::decode(&wire(-5, 0, 0)).unwrap().0, Duration::ZERO);
    assert_eq!(
        Interval::decode(&wire(10, -1, 0)).unwrap().0,
        Duration::ZERO
    );
    assert_eq!(
        Interval(Duration::MAX).encode()[..8],
        i64::MAX.to_be_bytes()
    );
}

#[test]
fn anything_but_sixteen_bytes_is_refused() {
    assert!(Interval::decode(&[0; 15]).is_none());
    assert!(Interval::decode(&[0; 17]).is_none());
}
