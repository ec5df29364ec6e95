-- Row-level policies on every table of a project, partitions, and what the application may do.

create function instar.current_project() returns uuid
language sql stable parallel safe
-- A pooled connection holds an empty string after a transaction that had set the project.
return nullif(current_setting('app.project', true), '')::uuid;

create function instar.protect_table(p_table regclass, p_column text) returns void
language plpgsql as $$
begin
  execute format('alter table %s enable row level security', p_table);
  execute format('alter table %s force row level security', p_table);
  execute format(
    'create policy project_wall on %s using (%I = instar.current_project()) '
    'with check (%I = instar.current_project())', p_table, p_column, p_column);
end $$;

-- The smallest UUIDv7 of a moment: 48 bits of milliseconds, then zeros.
create function instar.uuid_floor(p_moment timestamptz) returns uuid
language sql immutable
return (lpad(to_hex((extract(epoch from p_moment) * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid;

create function instar.create_partitions(p_months_ahead integer, p_from timestamptz)
returns integer
language plpgsql set timezone = 'UTC' as $$
declare
  parent record;
  month timestamptz;
  part text;
  made integer := 0;
begin
  if p_months_ahead not between 0 and 24 then
    raise exception 'months ahead must be 0 to 24, got %', p_months_ahead;
  end if;
  perform pg_advisory_xact_lock(hashtextextended('instar.create_partitions', 0));
  for parent in
    select c.oid::regclass as name, c.relname from pg_partitioned_table p
    join pg_class c on c.oid = p.partrelid
    where c.relnamespace = 'instar'::regnamespace order by c.relname
  loop
    for i in 0..p_months_ahead loop
      month := date_trunc('month', p_from) + make_interval(months => i);
      part := parent.relname || to_char(month, '"_y"YYYY"m"MM');
      continue when to_regclass('instar.' || quote_ident(part)) is not null;
      begin
        execute format(
          'create table instar.%I partition of %s for values from (%L) to (%L)', part, parent.name,
          instar.uuid_floor(month), instar.uuid_floor(month + interval '1 month'));
        perform instar.protect_table(format('instar.%I', part)::regclass, 'project_id');
        made := made + 1;
      exception when check_violation then
        -- Rows of that month are in the default partition already; they stay there.
        raise notice 'partition % not made: the default partition holds rows of that month', part;
      end;
    end loop;
  end loop;
  return made;
end $$;

-- What the application calls: from the present month on. Runs as instar_owner, who owns the tables.
create function instar.ensure_partitions(p_months_ahead integer) returns integer
language sql security definer set search_path = instar, pg_temp
as $$ select instar.create_partitions(p_months_ahead, clock_timestamp()) $$;

do $$
declare
  wall record;
  parent record;
begin
  for wall in
    select c.oid::regclass as name from pg_class c
    where c.relnamespace = 'instar'::regnamespace and c.relkind in ('r', 'p')
      and exists (
        select from pg_attribute a
        where a.attrelid = c.oid and a.attname = 'project_id' and not a.attisdropped)
  loop
    perform instar.protect_table(wall.name, 'project_id');
  end loop;
  perform instar.protect_table('instar.project', 'id');
  for parent in
    select c.oid::regclass as name, c.relname from pg_partitioned_table p
    join pg_class c on c.oid = p.partrelid where c.relnamespace = 'instar'::regnamespace
  loop
    execute format('create table instar.%I partition of %s default',
                   parent.relname || '_default', parent.name);
    perform instar.protect_table(
      format('instar.%I', parent.relname || '_default')::regclass, 'project_id');
  end loop;
end $$;

revoke all on all functions in schema instar from public;
grant usage on schema instar to instar_app, instar_definer;
grant execute on function instar.current_project(), instar.ensure_partitions(integer)
  to instar_app, instar_definer;

-- Read by everybody in the application. Partitions get no grants: they are reached through the parent,
-- where its policy holds.
grant select on
  instar.alembic_version, instar.installation, instar.project, instar.api_key, instar.artifact,
  instar.version, instar.version_parent, instar.version_part, instar.label, instar.label_event,
  instar.blob, instar.task,
  instar.run, instar.run_event, instar.rollout_identity, instar.rollout, instar.rollout_score,
  instar.message, instar.step, instar.model_call, instar.tool_call, instar.evolution_run,
  instar.effect, instar.candidate, instar.evaluation, instar.sealed_epoch, instar.sealed_test,
  instar.sealed_use, instar.proposal, instar.promotion, instar.budget, instar.reservation,
  instar.job, instar.outbox, instar.idempotency_key, instar.mcp_server, instar.price,
  instar.audit_event
to instar_app;

-- sealed_task is here and not above: the application writes sealed content and cannot read it.
grant insert on
  instar.project, instar.api_key, instar.artifact, instar.version, instar.version_parent,
  instar.version_part,
  instar.version_part, instar.label, instar.label_event, instar.blob, instar.task, instar.sealed_task, instar.run,
  instar.run_event, instar.rollout_identity, instar.rollout, instar.rollout_score, instar.message,
  instar.step, instar.model_call, instar.tool_call, instar.evolution_run, instar.effect,
  instar.candidate, instar.evaluation, instar.sealed_epoch, instar.sealed_test, instar.sealed_use,
  instar.proposal, instar.promotion, instar.budget, instar.reservation, instar.job, instar.outbox,
  instar.idempotency_key, instar.mcp_server, instar.price, instar.audit_event
to instar_app;

-- Content is immutable: no update of blobs, messages, tasks, steps, rollouts, scores, events, audit.
grant update on
  instar.project, instar.api_key, instar.artifact, instar.label, instar.run, instar.model_call,
  instar.tool_call, instar.evolution_run, instar.effect, instar.candidate, instar.evaluation,
  instar.sealed_epoch, instar.sealed_test, instar.sealed_use, instar.proposal, instar.promotion,
  instar.budget, instar.reservation, instar.job, instar.outbox, instar.idempotency_key,
  instar.mcp_server, instar.price
to instar_app;
grant update (deleted_at) on instar.version to instar_app;
grant delete on instar.label, instar.idempotency_key, instar.outbox to instar_app;

-- What the definer functions need, and no more.
grant select on instar.project, instar.api_key, instar.task, instar.sealed_task,
  instar.sealed_test to instar_definer;
grant select, update on instar.job, instar.outbox to instar_definer;

insert into instar.installation (id) values (gen_random_uuid());
-- instar_definer may create its functions here during this migration only.
grant create on schema instar to instar_definer;
