-- What 0001 stored, in the words of 0002. Runs as instar_owner, whom the forced policies stop: they
-- are lifted for the length of this transaction.
alter table instar.label no force row level security;
alter table instar.api_key no force row level security;
alter table instar.audit_event no force row level security;
alter table instar.audit_head no force row level security;
alter table instar.artifact no force row level security;
alter table instar.version no force row level security;
alter table instar.blob no force row level security;

-- Components of agents are kept under the kinds of the registry, under the names they had. Where such
-- a name is taken already, the old kind stays: versions are pinned by id, so the agent still loads.
update instar.artifact a set kind = renamed.new
from (values ('instructions', 'prompt'), ('tool_descriptions', 'tool_definition'),
  ('tool_policy', 'policy'), ('memory', 'memory_bank'), ('judge', 'evaluator')) renamed (old, new)
where a.kind = renamed.old and not exists (
  select from instar.artifact b
  where b.project_id = a.project_id and b.kind = renamed.new and b.name = a.name);

-- Whose an artifact is follows its first version. Jobs may lay versions over agents and what an agent
-- lists as trainable; everything else that a person made stays closed to them.
update instar.artifact a set owner_kind = v.author_kind
from instar.version v where v.artifact_id = a.id and v.number = 1;
update instar.artifact set job_access = 'overlay' where kind = 'agent';
update instar.artifact set job_access = 'overlay' where id in (
  select pinned.artifact_id from instar.artifact a
  join instar.version v on v.artifact_id = a.id
  join instar.blob b on b.project_id = v.project_id and b.digest = v.blob_digest
  cross join lateral json_array_elements(convert_from(b.content, 'UTF8')::json -> 'components') c
  join instar.version pinned on pinned.id = (c ->> 'version_id')::uuid
  where a.kind = 'agent' and v.media_type = 'application/json' and (c ->> 'trainable')::boolean);
-- What names look like, where letters of ASCII alone tell it; of two that look alike the elder has it.
-- Other names are compared from their next save on.
update instar.artifact a set skeleton = folded.looks
from (
  select id, looks, row_number() over (
    partition by project_id, kind, looks order by created_at, id) as place
  from (
    select id, project_id, kind, created_at, translate(lower(name), '01|', 'oll') as looks
    from instar.artifact where name ~ '^[!-~]+$') names) folded
where folded.id = a.id and folded.place = 1;
-- A task set's content names its sealed tasks, which nobody may find.
update instar.artifact a
set search = instar.artifact_words(a.name, a.description, a.tags) || setweight(to_tsvector('simple',
  case when a.kind = 'task_set' then '' else left(convert_from(b.content, 'UTF8'), 60000) end), 'D')
from instar.version v
join instar.blob b on b.project_id = v.project_id and b.digest = v.blob_digest
where v.artifact_id = a.id and v.number = a.last_version
  and v.media_type in ('text/plain; charset=utf-8', 'application/json');

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

alter table instar.artifact force row level security;
alter table instar.version force row level security;
alter table instar.blob force row level security;
alter table instar.label force row level security;
alter table instar.api_key force row level security;
alter table instar.audit_event force row level security;
alter table instar.audit_head force row level security;
