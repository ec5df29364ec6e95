-- What an import without sealed contents leaves open. Owned by instar_definer.

-- How many sealed tasks of a task-set version have no content here. A number, and only within the
-- caller's own project: the contents themselves stay unreadable.
create function instar.count_sealed_missing(p_version uuid) returns bigint
language sql stable security definer set search_path = instar, pg_temp
as $$
  select count(*) from task t
  where t.version_id = p_version and t.split = 'sealed' and t.project_id = instar.current_project()
    and not exists (
      select from sealed_task s where s.version_id = t.version_id and s.task_id = t.task_id)
$$;

revoke all on function instar.count_sealed_missing(uuid) from public;
grant execute on function instar.count_sealed_missing(uuid) to instar_app;
