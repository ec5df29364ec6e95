-- Appending to the audit chain: the only way for the application. Owned by instar_definer.

-- The link is sha256 over lines: the hash before, the number, the moment, the sha256 of the canonical
-- JSON of what happened. The moment never runs backwards within a stream, whatever the clock does.
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
  moment := greatest(clock_timestamp(), head.at);
  link := encode(sha256(convert_to(
    head.hash || E'\n' || (head.seq + 1) || E'\n'
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

revoke all on function instar.append_audit(uuid, uuid, text, text, text, text, text, json, text)
  from public;
grant execute on function
  instar.append_audit(uuid, uuid, text, text, text, text, text, json, text) to instar_app;
