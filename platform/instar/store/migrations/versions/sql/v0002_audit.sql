-- Appending to the audit chain and sealing it: the only ways for the application. Owned by
-- instar_definer.

-- The link is sha256 over lines: the hash before, the number, the row's id, the moment, the sha256 of
-- the canonical JSON of what happened. The moment never runs backwards within a stream, nor behind the
-- project's last checkpoint that this transaction sees, whatever the clock does.
create function instar.append_audit(
  p_id uuid, p_project uuid, p_stream text, p_actor_kind text, p_actor text, p_action text,
  p_subject text, p_details json, p_body_hash text)
returns bigint
language plpgsql security definer set search_path = instar, pg_temp
as $$
declare
  head audit_head%rowtype;
  moment timestamptz;
  link text;
begin
  if p_project is distinct from instar.current_project() then
    raise insufficient_privilege using message = 'audit events are written in their own project';
  end if;
  insert into audit_head (project_id, stream, seq, hash, at)
  values (p_project, p_stream, 0, '', '-infinity') on conflict do nothing;
  select * into strict head from audit_head
  where project_id = p_project and stream = p_stream for update;
  moment := greatest(clock_timestamp(), head.at, (
    select c.created_at from audit_checkpoint c
    where c.project_id = p_project order by c.seq desc limit 1));
  link := encode(sha256(convert_to(
    head.hash || E'\n' || (head.seq + 1) || E'\n' || p_id || E'\n'
    || to_char(moment at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') || E'\n' || p_body_hash,
    'UTF8')), 'hex');
  insert into audit_event (id, project_id, stream, seq, actor_kind, actor, action, subject, details,
                           previous_hash, hash, format, created_at)
  values (p_id, p_project, p_stream, head.seq + 1, p_actor_kind, p_actor, p_action, p_subject,
          p_details, head.hash, link, 2, moment);
  update audit_head set seq = head.seq + 1, hash = link, at = moment
  where project_id = p_project and stream = p_stream;
  return head.seq + 1;
end $$;

-- Stores a signed checkpoint and notes up to where each of its streams is sealed now. The table of
-- sealed heads is apart from audit_head, so that sealing never waits for a writer, nor a writer for it.
create function instar.seal_audit(
  p_project uuid, p_document json, p_hash text, p_key_id text, p_signature text)
returns void
language plpgsql security definer set search_path = instar, pg_temp
as $$
declare
  last bigint;
begin
  if p_project is distinct from instar.current_project() then
    raise insufficient_privilege using message = 'checkpoints are written in their own project';
  end if;
  select coalesce(max(seq), 0) into last from audit_checkpoint where project_id = p_project;
  if (p_document ->> 'seq')::bigint is distinct from last + 1 then
    raise unique_violation using message = format('checkpoint %s does not follow checkpoint %s',
      p_document ->> 'seq', last);
  end if;
  insert into audit_checkpoint (project_id, seq, document, hash, key_id, signature, created_at)
  values (p_project, last + 1, p_document, p_hash, p_key_id, p_signature,
          (p_document ->> 'at')::timestamptz);
  insert into audit_sealed (project_id, stream, seq)
  select p_project, head ->> 0, (head ->> 1)::bigint
  from json_array_elements(p_document -> 'heads') as head
  on conflict (project_id, stream) do update set seq = excluded.seq;
end $$;

revoke all on function
  instar.append_audit(uuid, uuid, text, text, text, text, text, json, text),
  instar.seal_audit(uuid, json, text, text, text)
from public;
grant execute on function
  instar.append_audit(uuid, uuid, text, text, text, text, text, json, text),
  instar.seal_audit(uuid, json, text, text, text)
to instar_app;
