-- Row-level policies and grants of what 0002 adds.

do $$
declare
  wall text;
begin
  foreach wall in array array['version_rollout', 'role_binding', 'secret', 'audit_head', 'audit_checkpoint',
    'audit_sealed']
  loop
    perform instar.protect_table(format('instar.%I', wall)::regclass, 'project_id');
  end loop;
  -- No row of these is anybody's to read: the definer functions look at them.
  foreach wall in array array['session', 'sign_in', 'login_failure'] loop
    execute format('alter table instar.%I enable row level security', wall);
    execute format('alter table instar.%I force row level security', wall);
    execute format('create policy nobody on instar.%I using (false) with check (false)', wall);
  end loop;
end $$;

-- A person is visible where he or she has a role.
alter table instar."user" enable row level security;
alter table instar."user" force row level security;
create policy project_wall on instar."user"
  using (exists (
    select from instar.role_binding b
    where b.user_id = "user".id and b.project_id = instar.current_project()))
  with check (false);

grant select on instar.version_rollout, instar.role_binding, instar.secret,
  instar.audit_head, instar.audit_checkpoint, instar.audit_sealed to instar_app;
-- Of a person, never the password's hash.
grant select (id, email, name, issuer, instance, created_at, disabled_at) on instar."user"
  to instar_app;
grant insert on instar.version_rollout, instar.role_binding, instar.secret to instar_app;
grant update on instar.role_binding, instar.secret to instar_app;
grant delete on instar.role_binding to instar_app;

-- The chain grows through instar.append_audit alone, its checkpoints through instar.seal_audit.
revoke insert on instar.audit_event from instar_app;
grant select, insert on instar.audit_event to instar_definer;
grant select, insert, update on instar.audit_head, instar.audit_sealed to instar_definer;
grant select, insert on instar.audit_checkpoint to instar_definer;

grant select, insert, update on instar."user", instar.session, instar.sign_in to instar_definer;
grant select, insert, update, delete on instar.login_failure to instar_definer;
grant delete on instar.sign_in to instar_definer;
-- When a key was used last, and nothing else of it.
grant update (last_used_at) on instar.api_key to instar_definer;
grant select on instar.role_binding to instar_definer;

-- Which keys are in use is asked across projects.
grant select on instar.secret to instar_definer;
