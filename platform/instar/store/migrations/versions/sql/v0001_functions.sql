-- Cross-project work, by name. Owned by instar_definer (BYPASSRLS). Each returns ids, states and tokens
-- only; the caller then opens a transaction of that project. The exception is the sealed content, which
-- is handed out within the caller's own project and only for an open test.

create function instar.find_project(p_name text) returns uuid
language sql stable security definer set search_path = instar, pg_temp
as $$ select id from project where name = p_name and deleted_at is null $$;

create function instar.list_projects() returns setof uuid
language sql stable security definer set search_path = instar, pg_temp
as $$ select id from project where deleted_at is null order by id $$;

create function instar.find_api_key(p_hash text)
returns table (project_id uuid, key_id uuid, role text)
language sql stable security definer set search_path = instar, pg_temp
as $$
  select k.project_id, k.id, k.role::text from api_key k
  where k.hash = p_hash and k.revoked_at is null
    and (k.expires_at is null or k.expires_at > clock_timestamp())
$$;

-- A job may be claimed when it waits, or when its lease ran out (its worker is gone). Every claim
-- counts as an attempt and gets the next fencing token, so that the former holder can write no more.
create function instar.claim_job(p_job uuid, p_worker text, p_lease_s double precision)
returns table (job_id uuid, project_id uuid, fencing_token bigint)
language sql security definer set search_path = instar, pg_temp
as $$
  update job j
  set state = 'leased', worker = p_worker, attempts = j.attempts + 1,
      fencing_token = j.fencing_token + 1, heartbeat_at = clock_timestamp(),
      lease_until = clock_timestamp() + make_interval(secs => p_lease_s)
  where j.id = (
    select c.id from job c
    where c.id = p_job and not c.cancel_requested and c.attempts < c.max_attempts
      and ((c.state = 'queued' and c.run_after <= clock_timestamp())
        or (c.state in ('leased', 'running') and c.lease_until < clock_timestamp()))
    for update skip locked)
  returning j.id, j.project_id, j.fencing_token
$$;

create function instar.claim_next_job(
  p_queues text[], p_worker text, p_lease_s double precision)
returns table (job_id uuid, project_id uuid, fencing_token bigint)
language sql security definer set search_path = instar, pg_temp
as $$
  update job j
  set state = 'leased', worker = p_worker, attempts = j.attempts + 1,
      fencing_token = j.fencing_token + 1, heartbeat_at = clock_timestamp(),
      lease_until = clock_timestamp() + make_interval(secs => p_lease_s)
  where j.id = (
    select c.id from job c
    where c.queue = any(p_queues) and c.state = 'queued' and not c.cancel_requested
      and c.attempts < c.max_attempts and c.run_after <= clock_timestamp()
    order by c.run_after, c.id limit 1
    for update skip locked)
  returning j.id, j.project_id, j.fencing_token
$$;

create function instar.list_due_jobs(p_limit integer)
returns table (job_id uuid, project_id uuid, queue text)
language sql stable security definer set search_path = instar, pg_temp
as $$
  select j.id, j.project_id, j.queue::text from job j
  where j.state = 'queued' and j.run_after <= clock_timestamp() and not j.cancel_requested
  order by j.run_after, j.id limit p_limit
$$;

-- Jobs whose worker is gone: back to the queue, or dead after the last attempt, or cancelled where a
-- person asked for it. The fencing token grows, so a worker that was only slow can write no more.
create function instar.reap_jobs(p_limit integer)
returns table (job_id uuid, project_id uuid, state text)
language sql security definer set search_path = instar, pg_temp
as $$
  update job j
  set state = case when j.cancel_requested then 'cancelled'
                   when j.attempts >= j.max_attempts then 'dead' else 'queued' end,
      fencing_token = j.fencing_token + 1, lease_until = null,
      run_after = clock_timestamp(),
      finished_at = case when j.cancel_requested or j.attempts >= j.max_attempts
                         then clock_timestamp() end,
      last_error = case when j.cancel_requested then j.last_error
                        else 'the worker ' || quote_literal(j.worker) || ' stopped renewing its lease'
                        end
  where j.id in (
    select c.id from job c
    where c.state in ('leased', 'running') and c.lease_until < clock_timestamp()
    order by c.lease_until limit p_limit
    for update skip locked)
  returning j.id, j.project_id, j.state::text
$$;

create function instar.pull_outbox(p_limit integer)
returns table (outbox_id uuid, project_id uuid, topic text, ref_id uuid)
language sql security definer set search_path = instar, pg_temp
as $$
  update outbox o set sent_at = clock_timestamp()
  where o.id in (
    select c.id from outbox c where c.sent_at is null order by c.id limit p_limit
    for update skip locked)
  returning o.id, o.project_id, o.topic::text, o.ref_id
$$;

-- The tasks of an open sealed test's groups. Only within the caller's project.
create function instar.read_sealed_tasks(p_test uuid)
returns table (task_id text, group_key text, ordinal integer, content json)
language sql stable security definer set search_path = instar, pg_temp
as $$
  select t.task_id::text, t.group_key::text, t.ordinal, s.content
  from sealed_test x
  join task t on t.version_id = x.task_set_version_id and t.split = 'sealed'
    and t.project_id = x.project_id
  join sealed_task s on s.version_id = t.version_id and s.task_id = t.task_id
    and s.project_id = x.project_id
  where x.id = p_test and x.state = 'open' and x.project_id = instar.current_project()
    and t.group_key in (select json_array_elements_text(x.groups))
  order by t.ordinal
$$;

revoke all on function
  instar.find_project(text), instar.list_projects(), instar.find_api_key(text),
  instar.claim_job(uuid, text, double precision),
  instar.claim_next_job(text[], text, double precision), instar.list_due_jobs(integer),
  instar.reap_jobs(integer), instar.pull_outbox(integer), instar.read_sealed_tasks(uuid)
from public;
grant execute on function
  instar.find_project(text), instar.list_projects(), instar.find_api_key(text),
  instar.claim_job(uuid, text, double precision),
  instar.claim_next_job(text[], text, double precision), instar.list_due_jobs(integer),
  instar.reap_jobs(integer), instar.pull_outbox(integer), instar.read_sealed_tasks(uuid)
to instar_app;
