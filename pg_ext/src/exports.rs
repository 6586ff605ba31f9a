//! The symbols that `sql/*.sql` names. Each exported function reads its call, runs a function of another module and
//! raises that function's error. A released symbol is never removed.

use crate::call::Call;
use crate::error::Result;
use crate::{
    action, cancel, doctor, guard, inbox, incarnation, janitor, key, machine, metrics, outbox,
    raise, role, shard,
};
use pgrx::pg_sys::{self, Datum};

fn run(fcinfo: pg_sys::FunctionCallInfo, function: fn(&Call) -> Result<Datum>) -> Datum {
    // SAFETY: fcinfo is what the server passed to the exported function.
    let call = unsafe { Call::new(fcinfo) };
    match function(&call) {
        Ok(datum) => datum,
        Err(error) => raise::raise(error),
    }
}

/// Declares that `$symbol` has the version-1 calling convention.
macro_rules! version_1 {
    ($symbol:ident) => {
        #[unsafe(export_name = concat!("pg_finfo_", stringify!($symbol)))]
        pub extern "C" fn convention() -> &'static pg_sys::Pg_finfo_record {
            static V1: pg_sys::Pg_finfo_record = pg_sys::Pg_finfo_record { api_version: 1 };
            &V1
        }
    };
}

macro_rules! export {
    ($($symbol:ident => $function:expr;)*) => {$(
        const _: () = {
            #[pgrx::pg_guard]
            #[unsafe(export_name = stringify!($symbol))]
            pub extern "C-unwind" fn called(fcinfo: pg_sys::FunctionCallInfo) -> Datum {
                run(fcinfo, $function)
            }

            version_1!($symbol);
        };
    )*};
}

export! {
    pg_once_key_claim => key::claim::key_claim;
    pg_once_key_advance => key::hold::key_advance;
    pg_once_key_extend => key::hold::key_extend;
    pg_once_key_complete => key::finish::key_complete;
    pg_once_key_abort => key::finish::key_abort;
    pg_once_key_release => key::finish::key_release;
    pg_once_key_park => key::finish::key_park;
    pg_once_key_resolve => key::resolve::key_resolve;
    pg_once_key_expire => key::resolve::key_expire;
    pg_once_key_forget => key::resolve::key_forget;
    pg_once_key_step => key::step::key_step;
    pg_once_key_step_done => key::step::key_step_done;
    pg_once_key_derive => key::step::key_derive;
    pg_once_key_rotate => key::step::key_rotate;
    pg_once_key_take_abandoned => key::take::key_take_abandoned;
    pg_once_key_get => key::inspect::key_get;
    pg_once_key_list => key::list::key_list;
    pg_once_scope_set => key::scope::scope_set;
    pg_once_scope_list => key::scopes::scope_list;
    pg_once_scope_get => key::scope::scope_get;
    pg_once_machine_define => guard::define::machine_define;
    pg_once_machine_drop => guard::define::machine_drop;
    pg_once_machine_get => machine::inspect::machine_get;
    pg_once_machine_check => doctor::check::machine_check;
    pg_once_machine_assert => doctor::check::machine_assert;
    pg_once_machine_list => machine::inspect::machine_list;
    pg_once_machine_history => machine::history::machine_history;
    pg_once_machine_diagram => machine::diagram::machine_diagram;
    pg_once_machine_guard => guard::install::machine_guard;
    pg_once_machine_guard_row => guard::row::machine_guard_row;
    pg_once_machine_guard_item => guard::item::machine_guard_item;
    pg_once_transition => machine::transition::transition;
    pg_once_transition_many => machine::transition_many::transition_many;
    pg_once_action_claim => action::claim::action_claim;
    pg_once_action_expire => action::hold::action_expire;
    pg_once_action_get => action::inspect::action_get;
    pg_once_action_list => action::inspect::action_list;
    pg_once_action_extend => action::hold::action_extend;
    pg_once_action_finish => action::end::action_finish;
    pg_once_action_release => action::end::action_release;
    pg_once_action_adopt => cancel::adopt::action_adopt;
    pg_once_cancel_request => cancel::request::cancel_request;
    pg_once_cancel_refund => cancel::refund::cancel_refund;
    pg_once_cancel_items => cancel::cleanup::cancel_items;
    pg_once_cancel_confirm => cancel::cleanup::cancel_confirm;
    pg_once_cancel_finish => cancel::finish::cancel_finish;
    pg_once_cancel_pending => cancel::pending::cancel_pending;
    pg_once_cancel_audit => cancel::audit::cancel_audit;
    pg_once_inbox_accept => inbox::accept::inbox_accept;
    pg_once_inbox_record => inbox::accept::inbox_record;
    pg_once_inbox_barrier => inbox::barrier::inbox_barrier;
    pg_once_shard_of => shard::shard_of;
    pg_once_shard_set => shard::shard_set;
    pg_once_shard_get => shard::shard_get;
    pg_once_outbox_emit => outbox::emit::outbox_emit;
    pg_once_outbox_take => outbox::take::outbox_take;
    pg_once_outbox_ack => outbox::ack::outbox_ack;
    pg_once_outbox_nack => outbox::nack::outbox_nack;
    pg_once_outbox_dead => outbox::dead::outbox_dead;
    pg_once_outbox_redrive => outbox::dead::outbox_redrive;
    pg_once_outbox_discard => outbox::dead::outbox_discard;
    pg_once_outbox_peek => outbox::peek::outbox_peek;
    pg_once_topic_list => metrics::topics::topic_list;
    pg_once_outbox_deliveries => outbox::delivery::outbox_deliveries;
    pg_once_outbox_extend => outbox::extend::outbox_extend;
    pg_once_topic_set => outbox::options::topic_set;
    pg_once_topic_get => outbox::options::topic_get;
    pg_once_subscriber_set => outbox::options::subscriber_set;
    pg_once_subscriber_get => outbox::options::subscriber_get;
    pg_once_topic_drop => outbox::options::topic_drop;
    pg_once_subscriber_drop => outbox::options::subscriber_drop;
    pg_once_sweep => janitor::sweep;
    pg_once_sweep_all => janitor::sweep_all;
    pg_once_janitor_status => janitor::janitor_status;
    pg_once_metrics => metrics::metrics;
    pg_once_doctor => doctor::doctor;
    pg_once_verify => doctor::verify::verify;
    pg_once_incarnation_renew => incarnation::incarnation_renew;
    pg_once_grant_role => role::grant_role;
    pg_once_revoke_role => role::revoke_role;
    pg_once_role_list => role::role_list;
}
