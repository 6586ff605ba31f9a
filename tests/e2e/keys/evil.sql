-- Twins of built-in objects that raise EVIL0 when they are run; tests put them first in search_path.
create schema evil;
grant usage on schema evil to public;
do $do$
declare o record; n int := 0;
begin
    for o in
        select oprname, oprleft::regtype as l, oprright::regtype as r, oprresult::regtype as res
          from pg_operator where oprnamespace = 'pg_catalog'::regnamespace and oprleft <> 0
    loop
        begin
            execute format('create function evil.f%s(%s, %s) returns %s language plpgsql as
                $f$ begin raise exception using errcode = %L, message = %L; end $f$',
                n, o.l, o.r, o.res, 'EVIL0', format('evil operator %s (%s, %s)', o.oprname, o.l, o.r));
            execute format('create operator evil.%s (leftarg = %s, rightarg = %s, function = evil.f%s)',
                o.oprname, o.l, o.r, n);
            n := n + 1;
        exception when others then null;
        end;
    end loop;
    for o in
        select p.proname, pg_get_function_identity_arguments(p.oid) as args, pg_get_function_result(p.oid) as res
          from pg_proc p where p.pronamespace = 'pg_catalog'::regnamespace and p.prokind = 'f'
           and p.proname ~ '^(jsonb?_|sha256|encode|decode|convert|format|quote_|now|clock_timestamp|make_interval|interval|text|int[48]|timestamptz|getdatabaseencoding|array_|has_|pg_has_role|current_setting|set_config|set_byte|length|starts_with|date_part|extract|md5|max|upper|lower|nextval|random|least|greatest)'
    loop
        begin
            execute format('create function evil.%I(%s) returns %s language plpgsql as
                $f$ begin raise exception using errcode = %L, message = %L; end $f$',
                o.proname, o.args, o.res, 'EVIL0', 'evil function ' || o.proname);
            n := n + 1;
        exception when others then null;
        end;
    end loop;
    if n < 800 then raise 'only % twins', n; end if;
end $do$;
create table evil.pg_roles (rolname name, oid oid);
create table evil.pg_proc (oid oid, proname name, pronamespace oid);
create table evil.key (id int);
create table evil.scope (scope text);
create table evil.key_step (key_id int);
create table evil.role_grant (role text, kind text);
create domain evil.text as int;
create domain evil.jsonb as int; create domain evil.json as int;
create domain evil.oid as int;
create domain evil.regrole as int;
create domain evil.regprocedure as int;
create domain evil.timestamptz as int;
grant all on all tables in schema evil to public;
