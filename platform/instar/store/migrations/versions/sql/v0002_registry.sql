-- Functions of the registry. Saving runs with the caller's own rights, so whatever it reads or writes
-- passes the row-level policies as if the caller had sent each statement alone, and is one round trip.

-- Takes an audit stream's lock ahead of the rows that the audited change will lock, so that all
-- writers lock in one order: the stream's head, then artifacts. Appending takes it again, for nothing.
-- The application may not lock heads itself; the owner of this function is bound by the policy too.
create function instar.lock_audit_head(p_project uuid, p_stream text) returns void
language plpgsql security definer set search_path = instar, pg_temp
as $$
begin
  if p_project is distinct from instar.current_project() then
    raise insufficient_privilege
      using message = 'row-level security: the audit chain of another project';
  end if;
  perform from audit_head where project_id = p_project and stream = p_stream for update;
  if not found then
    insert into audit_head (project_id, stream, seq, hash, at)
    values (p_project, p_stream, 0, '', '-infinity') on conflict do nothing;
    perform from audit_head where project_id = p_project and stream = p_stream for update;
  end if;
end $$;

-- Saves a version. What cannot be is told by status, not raised, so that the caller's transaction
-- lives on: 'saved', 'reused' (p_reuse and the same content is there), 'archived', 'read_only' (a
-- person's artifact that jobs may not touch), 'looks_like' and 'unseen' (told is the name, or the
-- first id that this project does not have).
create function instar.save_version(
  p_project uuid, p_kind text, p_name text, p_skeleton text, p_artifact_id uuid,
  p_version_id uuid, p_audit_id uuid, p_digest text, p_content bytea, p_media_type text,
  p_subject_digest text, p_author_kind text, p_author text, p_reason text, p_evidence json,
  p_origin text, p_base uuid, p_run uuid, p_parents uuid[], p_part_names text[],
  p_part_ids uuid[], p_rollouts uuid[], p_search text, p_description text, p_job_access text,
  p_reuse boolean)
returns table (
  status text, told text, id uuid, artifact_id uuid, number integer, blob_digest text,
  media_type text, subject_digest text, author_kind text, author text, reason text,
  evidence json, origin text, base_id uuid, run_id uuid, created_at timestamptz)
language plpgsql
as $$
#variable_conflict use_column
declare
  owner instar.artifact%rowtype;
  made instar.version%rowtype;
  stream text := case when p_author_kind = 'run' then p_author else 'admin' end;
  lexemes tsvector;
  linked uuid[] := p_parents || p_part_ids || array_remove(array[p_base], null);
  facts text;
  body text;
begin
  -- The stream's head first, then artifacts: every writer locks in this order, so that none waits
  -- for another in a circle.
  perform instar.lock_audit_head(p_project, stream);
  select a.* into owner from instar.artifact a
  where a.project_id = p_project and a.kind = p_kind and a.name = p_name for update;
  if not found then
    select a.name into told from instar.artifact a
    where a.project_id = p_project and a.kind = p_kind and a.skeleton = p_skeleton;
    if not found then
      insert into instar.artifact (
        id, project_id, kind, name, skeleton, owner_kind, job_access, description)
      values (
        p_artifact_id, p_project, p_kind, p_name, p_skeleton, p_author_kind,
        coalesce(p_job_access, 'none'), coalesce(p_description, ''))
      on conflict do nothing;
      select a.* into owner from instar.artifact a
      where a.project_id = p_project and a.kind = p_kind and a.name = p_name for update;
      if not found then
        -- Somebody made a look-alike between the look and the insert.
        select a.name into told from instar.artifact a
        where a.project_id = p_project and a.kind = p_kind and a.skeleton = p_skeleton;
      end if;
    end if;
  end if;
  if owner.id is null then
    status := 'looks_like';
    return next;
    return;
  end if;
  if owner.deleted_at is not null then
    status := 'archived';
    return next;
    return;
  end if;
  if p_author_kind <> 'run' and p_job_access is distinct from owner.job_access
    and p_job_access is not null then
    update instar.artifact a set job_access = p_job_access, revision = a.revision + 1
    where a.id = owner.id;
  end if;
  if p_reuse then
    select v.* into made from instar.version v
    where v.artifact_id = owner.id and v.blob_digest = p_digest and v.media_type = p_media_type
      and v.deleted_at is null
    order by v.number desc limit 1;
  end if;
  if made.id is not null then
    status := 'reused';
  elsif p_author_kind = 'run' and owner.owner_kind <> 'run' and owner.job_access <> 'overlay' then
    status := 'read_only';
    return next;
    return;
  else
    if cardinality(linked) > 0 then
      select l.id::text into told from unnest(linked) l (id)
      where not exists (select from instar.version v where v.id = l.id) limit 1;
      if found then
        status := 'unseen';
        return next;
        return;
      end if;
    end if;
    made.base_id := p_base;
    made.origin := p_origin;
    if p_author_kind = 'run' and p_origin = 'save' and owner.owner_kind <> 'run'
      and owner.last_version > 0 then
      -- What a job adds to a person's artifact lies on the person's newest version.
      made.origin := 'overlay';
      select coalesce(p_base, v.base_id, v.id) into made.base_id from instar.version v
      where v.artifact_id = owner.id and v.deleted_at is null order by v.number desc limit 1;
    end if;
    insert into instar.blob (project_id, digest, size, content)
    values (p_project, p_digest, octet_length(p_content), p_content) on conflict do nothing;
    insert into instar.version as v (
      id, project_id, artifact_id, number, blob_digest, media_type, subject_digest, author_kind,
      author, reason, evidence, origin, base_id, run_id)
    values (
      p_version_id, p_project, owner.id, owner.last_version + 1, p_digest, p_media_type,
      p_subject_digest, p_author_kind, p_author, p_reason, p_evidence, made.origin, made.base_id,
      p_run)
    returning v.* into made;
    if cardinality(p_parents) > 0 then
      insert into instar.version_parent (version_id, parent_id, project_id)
      select distinct made.id, parent, p_project from unnest(p_parents) parent;
    end if;
    if cardinality(p_part_ids) > 0 then
      insert into instar.version_part (version_id, name, ordinal, part_id, project_id)
      select made.id, part.name, part.place - 1, part.id, p_project
      from unnest(p_part_names, p_part_ids) with ordinality part (name, id, place);
    end if;
    if cardinality(p_rollouts) > 0 then
      insert into instar.version_rollout (version_id, rollout_id, project_id)
      select distinct made.id, rollout, p_project from unnest(p_rollouts) rollout;
    end if;
    lexemes := instar.artifact_words(
      owner.name, coalesce(p_description, owner.description), owner.tags)
      || setweight(to_tsvector('simple', p_search), 'D');
    update instar.artifact a set
      last_version = made.number, search = lexemes,
      description = coalesce(p_description, owner.description),
      revision = a.revision + case when p_description <> owner.description then 1 else 0 end
    where a.id = owner.id;
    status := 'saved';
    -- Canonical JSON: keys in order, no spaces; to_json escapes just as canonical_json does.
    facts := '{' || case when p_description <> owner.description
        then '"description":[' || to_json(owner.description) || ',' || to_json(p_description) || '],'
        else '' end
      || '"digest":' || to_json(p_digest) || ',"number":' || made.number
      || ',"origin":' || to_json(made.origin) || ',"version":' || to_json(made.id) || '}';
    body := '{"action":"artifact.save","actor":[' || to_json(p_author_kind) || ','
      || to_json(p_author) || '],"details":' || facts || ',"project":' || to_json(p_project)
      || ',"stream":' || to_json(stream) || ',"subject":' || to_json(p_kind || '/' || p_name)
      || '}';
    perform instar.append_audit(
      p_audit_id, p_project, stream, p_author_kind, p_author, 'artifact.save',
      p_kind || '/' || p_name, facts::json,
      encode(sha256(convert_to(body, 'UTF8')), 'hex'));
  end if;
  if owner.skeleton = '' and p_skeleton <> '' then
    -- An artifact from before names were compared; where two look alike already, the first has it.
    begin
      update instar.artifact a set skeleton = p_skeleton where a.id = owner.id;
    exception when unique_violation then null;
    end;
  end if;
  id := made.id;
  artifact_id := made.artifact_id;
  number := made.number;
  blob_digest := made.blob_digest;
  media_type := made.media_type;
  subject_digest := made.subject_digest;
  author_kind := made.author_kind;
  author := made.author;
  reason := made.reason;
  evidence := made.evidence;
  origin := made.origin;
  base_id := made.base_id;
  run_id := made.run_id;
  created_at := made.created_at;
  return next;
end $$;

-- The words of an artifact that its content does not hold: the name whole and in pieces, then
-- description and tags.
create function instar.artifact_words(p_name text, p_description text, p_tags jsonb)
returns tsvector
language sql immutable
as $$
  select setweight(to_tsvector('simple', p_name || ' ' || translate(p_name, '-_/.:', '     ')), 'A')
    || setweight(to_tsvector('simple', p_description), 'B')
    || setweight(to_tsvector('simple', p_tags #>> '{}'), 'C')
$$;

-- After an edit of description or tags: their words anew, the content's words as they were.
create function instar.index_artifact(p_artifact uuid) returns void
language sql
as $$
  update instar.artifact a
  set search = instar.artifact_words(a.name, a.description, a.tags) || ts_filter(a.search, '{d}')
  where a.id = p_artifact
$$;

-- Copies the tasks of one task-set version to another one of the same project, sealed contents too,
-- which the application can write and not read. The target must be new, and hold the same manifest.
create function instar.copy_tasks(p_source uuid, p_target uuid) returns void
language plpgsql security definer set search_path = instar, pg_temp
as $$
begin
  if not exists (
    select from version s join version t on t.blob_digest = s.blob_digest
    where s.id = p_source and t.id = p_target and s.project_id = t.project_id
      and s.project_id = instar.current_project()
      and not exists (select from task where version_id = p_target))
  then
    raise insufficient_privilege using message = 'tasks are copied to a new copy of their version';
  end if;
  insert into task (version_id, task_id, project_id, ordinal, split, group_key, slice,
    content_digest, content)
  select p_target, task_id, project_id, ordinal, split, group_key, slice, content_digest, content
  from task where version_id = p_source;
  insert into sealed_task (version_id, task_id, project_id, content)
  select p_target, task_id, project_id, content from sealed_task where version_id = p_source;
end $$;

revoke all on function instar.copy_tasks, instar.lock_audit_head, instar.save_version, instar.artifact_words,
  instar.index_artifact from public;
grant execute on function instar.copy_tasks, instar.lock_audit_head, instar.save_version, instar.artifact_words,
  instar.index_artifact to instar_app;
