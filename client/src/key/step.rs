//! Owns steps: the records of foreign calls inside a request.
//!
//! Invariant: the caller commits a step's beginning before the foreign call, so that the next attempt knows that the
//! other side may have acted. A caller must handle each variant of [`Step`].

use std::time::SystemTime;

use tokio_postgres::types::Type;

use super::{Lease, StepEvent, StepEvents, column};
use crate::executor::{of_row, value};
use crate::{Error, Executor, Json};

const STEP: &str = "SELECT * FROM once.key_step(scope => $1, key => $2, token => $3, step => $4, \
                    on_abort => $5)";
const STEP_DONE: &str = "SELECT * FROM once.key_step_done(scope => $1, key => $2, token => $3, \
                         step => $4, result => $5, on_complete => $6, on_abort => $7)";
const ROTATE: &str = "SELECT once.key_rotate(scope => $1, key => $2, token => $3, step => $4, \
                      from_version => $5)";

/// The answer of [`Lease::step`]: whether to make the foreign call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The step is done, with this result. Do not make the call again.
    Done(Option<Json>),
    /// No earlier attempt has begun the step since its last [`Lease::rotate`]: make the call, with the derived key.
    First {
        /// The key that the other side may dedupe by; the same on every attempt until a rotate.
        derived_key: String,
    },
    /// An earlier attempt began the step and did not record the end: the other side may have acted. If that side
    /// dedupes by the derived key, call again with that key; if not, first ask it whether it acted, or park. Ask only
    /// when the earlier call can no longer arrive: before then, the answer "no" proves nothing.
    Again {
        /// The key that the other side may dedupe by; the same on every attempt until a rotate.
        derived_key: String,
        /// How many earlier attempts began the step since its last rotate.
        attempted: i32,
        /// When the first earlier attempt began the step. Compare this with how long the other side keeps derived keys.
        first_at: Option<SystemTime>,
    },
}

/// The answer of [`Lease::step_done`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepEnd {
    /// `false` if another attempt, or a call with other arguments, has recorded the step's end before.
    pub recorded: bool,
    /// The recorded result.
    pub result: Option<Json>,
}

impl Lease {
    /// Records that a foreign call begins. Commit this record before you make the call.
    ///
    /// An attempt may call `step` again after the foreign call. Until [`Lease::step_done`] or [`Lease::rotate`] it gets
    /// its first answer again. Before the attempt repeats the foreign call, ask the other side whether it has acted.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doctest_lease.rs"));
    /// # fn main() { with_lease(async |pool, key, lease| {
    /// use pg_once::{Json, Step};
    ///
    /// # async fn charge(key: &str) -> Result<Json, pg_once::Error> { Json::of(key) }
    /// # async fn charge_made_with(_: &str) -> Option<Json> { None }
    /// let result = match lease.step(&pool, "charge").await? {
    ///     Step::Done(result) => result,
    ///     Step::First { derived_key } => Some(charge(&derived_key).await?),
    ///     // This bank does not dedupe: look up the charge first.
    ///     Step::Again { derived_key, .. } => match charge_made_with(&derived_key).await {
    ///         Some(found) => Some(found),
    ///         None => Some(charge(&derived_key).await?),
    ///     },
    /// };
    /// assert!(lease.step_done(&pool, "charge", result.as_ref()).await?.recorded);
    /// assert_eq!(lease.step(&pool, "charge").await?, Step::Done(result));
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// `ON001` if the lease is lost; `ON006` if this token has finished the key; `22023` for a bad argument.
    pub async fn step<E: Executor>(&self, exec: &E, step: &str) -> Result<Step, Error> {
        self.begin(exec, step, None).await
    }

    /// Does what [`Lease::step`] does, and registers a compensation: the transaction that aborts the key emits
    /// `on_abort`, even if the call's end was never recorded. The event's handler must find out whether there is
    /// something to undo.
    ///
    /// The event of the step that began last is emitted first. If the events of a key's steps have the same topic and
    /// order key, they are delivered in the order in which they were emitted.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doctest_topic.rs"));
    /// # fn main() { with_topic(async |pool, topic| {
    /// # use pg_once::{Claim, ClaimOptions, Scope};
    /// # let key = Scope::new("checkout").key(topic.as_str());
    /// # let Claim::Claimed(lease) = key.claim(&pool, &ClaimOptions::new()).await? else { panic!() };
    /// use pg_once::{Json, Response, Step, StepEvent};
    ///
    /// let charge = Json::of(&serde_json::json!({"undo": "charge"}))?;
    /// let refund = StepEvent::new(&topic, charge).order_key("order 7");
    /// let Step::First { derived_key } = lease.step_with(&pool, "charge", &refund).await? else {
    ///     panic!("nobody has begun it");
    /// };
    /// // ... the card is charged with derived_key; then the shipment is refused for good ...
    /// lease.abort(&pool, &Response::new(422).with_body("no such address")?).await?;
    ///
    /// let Some(batch) = topic.default_subscriber().take(&pool, 10, None).await? else { panic!() };
    /// assert_eq!(batch.events[0].payload.as_str(), r#"{"undo":"charge"}"#);
    /// # batch.ack(&pool, None).await?;
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// As [`Lease::step`]; `42704` if there is no such topic, `42501` if it has another owner.
    pub async fn step_with<E: Executor>(
        &self,
        exec: &E,
        step: &str,
        on_abort: &StepEvent,
    ) -> Result<Step, Error> {
        self.begin(exec, step, Some(on_abort.to_json()?)).await
    }

    async fn begin<E: Executor>(
        &self,
        exec: &E,
        step: &str,
        on_abort: Option<Json>,
    ) -> Result<Step, Error> {
        let own = [(&step as _, Type::TEXT), (&on_abort as _, Type::JSON)];
        let row = self.call(exec, STEP, &own).await?;
        if column(&row, "done")? {
            return Ok(Step::Done(column(&row, "result")?));
        }
        let derived_key = column(&row, "derived_key")?;
        Ok(match column(&row, "attempted")? {
            0 => Step::First { derived_key },
            attempted => Step::Again {
                derived_key,
                attempted,
                first_at: column(&row, "first_at")?,
            },
        })
    }

    /// Records a foreign call's end and result. If another attempt has recorded the end, returns the recorded result.
    ///
    /// # Errors
    /// As [`Lease::step`]; `ON006` also if an earlier transaction of this token has recorded the step's end.
    pub async fn step_done<E: Executor>(
        &self,
        exec: &E,
        step: &str,
        result: Option<&Json>,
    ) -> Result<StepEnd, Error> {
        self.step_done_with(exec, step, result, &StepEvents::new())
            .await
    }

    /// Does what [`Lease::step_done`] does, and registers events. Completing the key emits `on_complete`; aborting the
    /// key emits `on_abort` in place of the event of [`Lease::step_with`].
    ///
    /// # Errors
    /// As [`Lease::step_done`]; `42704` if there is no such topic, `42501` if it has another owner.
    pub async fn step_done_with<E: Executor>(
        &self,
        exec: &E,
        step: &str,
        result: Option<&Json>,
        events: &StepEvents,
    ) -> Result<StepEnd, Error> {
        let json = |event: &Option<StepEvent>| event.as_ref().map(StepEvent::to_json).transpose();
        let (on_complete, on_abort) = (json(&events.on_complete)?, json(&events.on_abort)?);
        let own = [
            (&step as _, Type::TEXT),
            (&result as _, Type::JSON),
            (&on_complete as _, Type::JSON),
            (&on_abort as _, Type::JSON),
        ];
        StepEnd::of_row(&self.call(exec, STEP_DONE, &own).await?)
    }

    /// Replaces a step's derived key. Use this if the other side has cached a refusal under the old key. `from_version`
    /// is the version to replace (the first is 1); a repeated call changes nothing. Returns the present version.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doctest_lease.rs"));
    /// # fn main() { with_lease(async |pool, key, lease| {
    /// lease.step(&pool, "charge").await?;
    /// let before = key.derive(&pool, "charge").await?;
    /// assert_eq!(lease.rotate(&pool, "charge", 1).await?, 2);
    /// assert_eq!(lease.rotate(&pool, "charge", 1).await?, 2);
    /// assert_ne!(key.derive(&pool, "charge").await?, before);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// As [`Lease::step`]; `22023` also if the step is done, or the version is neither the present nor the previous.
    pub async fn rotate<E: Executor>(
        &self,
        exec: &E,
        step: &str,
        from_version: i32,
    ) -> Result<i32, Error> {
        let own = [(&step as _, Type::TEXT), (&from_version as _, Type::INT4)];
        value(&self.call(exec, ROTATE, &own).await?)
    }
}

of_row!(StepEnd: recorded, result);
