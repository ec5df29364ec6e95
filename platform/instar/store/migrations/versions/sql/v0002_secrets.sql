-- Secrets across projects, for readiness and rotation: ids alone. Owned by instar_definer.

-- The keys that stored secrets are encrypted with, each with one secret to try it on.
create function instar.list_secret_keys()
returns table (key_id text, project_id uuid, secret_id uuid)
language sql stable security definer set search_path = instar, pg_temp
as $$
  select distinct on (s.key_id) s.key_id::text, s.project_id, s.id from secret s
  where s.deleted_at is null order by s.key_id, s.id
$$;

-- Secrets that are not under a key, by id.
create function instar.list_secrets_beside(p_key text, p_after uuid, p_limit integer)
returns table (project_id uuid, secret_id uuid)
language sql stable security definer set search_path = instar, pg_temp
as $$
  select s.project_id, s.id from secret s
  where s.deleted_at is null and s.key_id <> p_key and (p_after is null or s.id > p_after)
  order by s.id limit p_limit
$$;

revoke all on function instar.list_secret_keys() from public;
revoke all on function instar.list_secrets_beside(text, uuid, integer) from public;
grant execute on function instar.list_secret_keys() to instar_app;
grant execute on function instar.list_secrets_beside(text, uuid, integer) to instar_app;
