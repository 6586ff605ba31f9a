-- What a database's owner does beside the calls, one statement a line, each by itself.
alter table batch_job add column if not exists extra int default 7
alter table batch_job drop column if exists extra
alter table batch_item add column if not exists extra text
alter table batch_item drop column if exists extra
alter table batch_job alter column result type varchar(1000)
alter table batch_job alter column result type text
alter table batch_item alter column input set statistics 50
alter table wallet set (fillfactor = 70)
create index concurrently if not exists job_status on batch_job (status)
drop index concurrently if exists job_status
create index concurrently if not exists ordered_key on fz.ordered (key)
drop index concurrently if exists ordered_key
vacuum
vacuum (freeze, analyze) batch_job
vacuum full batch_item
vacuum full fz.took
cluster batch_job using batch_job_pkey
analyze
reindex table concurrently batch_job
reindex table batch_item
reindex table concurrently once.key
reindex index concurrently once.key_look
reindex table once.action_lease
reindex table concurrently once.retry
checkpoint
