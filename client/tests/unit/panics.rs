//! Unit tests of src/run/panics.rs.

#![allow(clippy::panic)] // the tested code panics

use super::*;

#[tokio::test]
async fn a_panic_is_told_with_its_message_wherever_the_code_runs() {
    let number = 7;
    let panics = |formatted: bool| async move {
        tokio::task::yield_now().await;
        match formatted {
            true => panic!("poison {number}"),
            false => panic!("poison"),
        }
    };
    for (formatted, message) in [(true, "poison 7"), (false, "poison")] {
        let here = caught(panics(formatted)).await.map_err(|p| p.to_string());
        assert_eq!(here, Err::<(), _>(message.to_owned()));
        let apart = apart(panics(formatted)).await.map_err(|p| p.to_string());
        assert_eq!(apart, Err::<(), _>(message.to_owned()));
    }
}

#[tokio::test]
async fn code_that_does_not_panic_says_what_it_says() {
    let says = || async {
        tokio::task::yield_now().await;
        7
    };
    assert!(matches!(caught(says()).await, Ok(7)));
    assert!(matches!(apart(says()).await, Ok(7)));
    tell(|| panic!("nobody hears it"));
}
