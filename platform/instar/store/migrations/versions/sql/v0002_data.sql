-- What 0001 stored, in the words of 0002. Runs as instar_owner, whom the forced policies stop: they
-- are lifted for the length of this transaction.
alter table instar.label no force row level security;
alter table instar.api_key no force row level security;
alter table instar.audit_event no force row level security;
alter table instar.audit_head no force row level security;

update instar.label set move_role = 'admin' where protected;
update instar.api_key set role = case role when 'reader' then 'viewer' when 'member' then 'operator'
  when 'admin' then 'admin' else 'viewer' end;
alter table instar.api_key add constraint ck_api_key_role
  check (role in ('viewer', 'operator', 'approver', 'admin'));
-- The key that the first start made for this machine may create projects and users.
update instar.api_key set instance = true
where role = 'admin' and name = 'command line of this machine';
insert into instar.audit_head (project_id, stream, seq, hash, at)
select distinct on (project_id, stream) project_id, stream, seq, hash, created_at
from instar.audit_event order by project_id, stream, seq desc;

alter table instar.label force row level security;
alter table instar.api_key force row level security;
alter table instar.audit_event force row level security;
alter table instar.audit_head force row level security;
