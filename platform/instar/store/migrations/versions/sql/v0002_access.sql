-- Users, sessions and sign-ins: what must be looked up before a project is known. Owned by
-- instar_definer; each returns what it names and nothing else. What a project's own transaction can
-- do behind its wall (roles, keys) has no function here.

-- The key's own row, and when it was used: at most once a minute, and never at the cost of the
-- request (a full or read-only database still answers reads).
drop function instar.find_api_key(text);
create function instar.find_api_key(p_hash text)
returns table (project_id uuid, key_id uuid, role text, scopes jsonb, instance boolean, agent text,
               expires_at timestamptz)
language plpgsql security definer set search_path = instar, pg_temp
as $$
#variable_conflict use_column
declare
  found_key api_key%rowtype;
begin
  select k.* into found_key from api_key k join project p on p.id = k.project_id
  where k.hash = p_hash and k.revoked_at is null and p.deleted_at is null
    and (k.expires_at is null or k.expires_at > clock_timestamp());
  if not found then
    return;
  end if;
  if coalesce(found_key.last_used_at, '-infinity') < clock_timestamp() - interval '1 minute' then
    begin
      update api_key set last_used_at = clock_timestamp() where id = (
        select id from api_key where id = found_key.id for update skip locked);
    exception when read_only_sql_transaction or disk_full then null;
    end;
  end if;
  return query select found_key.project_id, found_key.id, found_key.role::text, found_key.scopes,
                      found_key.instance, found_key.agent, found_key.expires_at;
end $$;

-- Whether anybody could be told from anybody else: a live key, or a person who can sign in.
create function instar.has_credential() returns boolean
language sql stable security definer set search_path = instar, pg_temp
as $$
  select exists (
    select from api_key k join project p on p.id = k.project_id
    where k.revoked_at is null and p.deleted_at is null
      and (k.expires_at is null or k.expires_at > clock_timestamp()))
  or exists (
    select from "user" u join role_binding b on b.user_id = u.id
    join project p on p.id = b.project_id
    where u.disabled_at is null and p.deleted_at is null
      and (u.password_hash <> '' or u.subject <> ''))
$$;

-- Counts an attempt before it is made, so that a thousand at once are a thousand; 0 lets it through,
-- else the seconds to wait. From the fifth on each attempt locks the address for longer. Addresses
-- that nobody has are counted alike.
create function instar.try_login(p_key text) returns double precision
language plpgsql security definer set search_path = instar, pg_temp
as $$
declare
  tried login_failure%rowtype;
  moment timestamptz;
begin
  delete from login_failure
  where at < clock_timestamp() - interval '1 day' and (key = p_key or locked_until is null
    or locked_until < clock_timestamp() - interval '1 day');
  insert into login_failure (key, failures) values (p_key, 0) on conflict do nothing;
  select * into strict tried from login_failure where key = p_key for update;
  moment := clock_timestamp();
  if tried.locked_until > moment then
    return extract(epoch from tried.locked_until - moment);
  end if;
  update login_failure set
    failures = tried.failures + 1, at = moment,
    locked_until = case when tried.failures >= 4 then
      moment + least(interval '15 minutes', interval '30 seconds' * 2 ^ least(tried.failures - 4, 6))
    end
  where key = p_key;
  return 0;
end $$;

create function instar.clear_login(p_key text) returns void
language sql security definer set search_path = instar, pg_temp
as $$ delete from login_failure where key = p_key $$;

-- What a password is compared with. No other function gives a password's hash.
create function instar.find_login(p_email text)
returns table (user_id uuid, password_hash text)
language sql stable security definer set search_path = instar, pg_temp
as $$
  select u.id, u.password_hash from "user" u
  where lower(u.email) = lower(p_email) and u.disabled_at is null
$$;

create function instar.find_user(p_email text) returns uuid
language sql stable security definer set search_path = instar, pg_temp
as $$ select u.id from "user" u where lower(u.email) = lower(p_email) $$;

create function instar.find_subject(p_issuer text, p_subject text)
returns table (user_id uuid, disabled boolean)
language sql stable security definer set search_path = instar, pg_temp
as $$
  select u.id, u.disabled_at is not null from "user" u
  where u.issuer = p_issuer and u.subject = p_subject and u.subject <> ''
$$;

-- The id, or null where the address or the subject is taken already.
create function instar.create_user(
  p_id uuid, p_email text, p_name text, p_password_hash text, p_issuer text, p_subject text,
  p_instance boolean)
returns uuid
language sql security definer set search_path = instar, pg_temp
as $$
  insert into "user" (id, email, name, password_hash, issuer, subject, instance)
  values (p_id, p_email, p_name, p_password_hash, p_issuer, p_subject, p_instance)
  on conflict do nothing returning id
$$;

-- Ties a person to an identity provider's subject, once.
create function instar.link_subject(p_user uuid, p_issuer text, p_subject text) returns boolean
language sql security definer set search_path = instar, pg_temp
as $$
  with linked as (
    update "user" u set issuer = p_issuer, subject = p_subject
    where u.id = p_user and u.subject = '' and u.disabled_at is null and p_subject <> ''
    returning 1)
  select exists (select from linked)
$$;

create function instar.list_user_projects(p_user uuid)
returns table (project_id uuid, name text, role text)
language sql stable security definer set search_path = instar, pg_temp
as $$
  select p.id, p.name::text, b.role::text from role_binding b
  join project p on p.id = b.project_id join "user" u on u.id = b.user_id
  where b.user_id = p_user and p.deleted_at is null and u.disabled_at is null
  order by p.name
$$;

-- When the session ends; null where the person is disabled or has no role in the project.
create function instar.open_session(
  p_id uuid, p_hash text, p_user uuid, p_project uuid, p_lifetime_s double precision)
returns timestamptz
language sql security definer set search_path = instar, pg_temp
as $$
  insert into session (id, hash, user_id, project_id, last_used_at, expires_at)
  select p_id, p_hash, u.id, p.id, clock_timestamp(),
         clock_timestamp() + make_interval(secs => p_lifetime_s)
  from "user" u join role_binding b on b.user_id = u.id join project p on p.id = b.project_id
  where u.id = p_user and u.disabled_at is null and p.id = p_project and p.deleted_at is null
  returning expires_at
$$;

-- Who holds a live session and what the person may do now in its project (null: nothing any more).
create function instar.find_session(p_hash text, p_idle_s double precision)
returns table (session_id uuid, user_id uuid, email text, name text, instance boolean,
               project_id uuid, role text, expires_at timestamptz)
language plpgsql security definer set search_path = instar, pg_temp
as $$
#variable_conflict use_column
declare
  held session%rowtype;
begin
  select s.* into held from session s join "user" u on u.id = s.user_id
  where s.hash = p_hash and s.revoked_at is null and s.expires_at > clock_timestamp()
    and s.last_used_at > clock_timestamp() - make_interval(secs => p_idle_s)
    and u.disabled_at is null;
  if not found then
    return;
  end if;
  if held.last_used_at < clock_timestamp() - interval '1 minute' then
    begin
      update session set last_used_at = clock_timestamp() where id = (
        select id from session where id = held.id for update skip locked);
    exception when read_only_sql_transaction or disk_full then null;
    end;
  end if;
  return query
    select held.id, u.id, u.email::text, u.name, u.instance, held.project_id,
           case when p.deleted_at is null then b.role::text end, held.expires_at
    from "user" u
    left join role_binding b on b.user_id = u.id and b.project_id = held.project_id
    left join project p on p.id = held.project_id
    where u.id = held.user_id;
end $$;

-- Lets a session work in another project of its person; false where the person has no role there.
create function instar.switch_session(p_hash text, p_project uuid) returns boolean
language sql security definer set search_path = instar, pg_temp
as $$
  with moved as (
    update session s set project_id = p.id
    from role_binding b join project p on p.id = b.project_id
    where s.hash = p_hash and s.revoked_at is null and s.expires_at > clock_timestamp()
      and b.user_id = s.user_id and p.id = p_project and p.deleted_at is null
    returning 1)
  select exists (select from moved)
$$;

create function instar.end_session(p_hash text) returns boolean
language sql security definer set search_path = instar, pg_temp
as $$
  with ended as (
    update session s set revoked_at = clock_timestamp()
    where s.hash = p_hash and s.revoked_at is null returning 1)
  select exists (select from ended)
$$;

create function instar.end_user_sessions(p_user uuid) returns bigint
language sql security definer set search_path = instar, pg_temp
as $$
  with ended as (
    update session s set revoked_at = clock_timestamp()
    where s.user_id = p_user and s.revoked_at is null returning 1)
  select count(*) from ended
$$;

-- Sets the password of a person of the caller's project and ends every session that the former one
-- opened.
create function instar.set_password(p_user uuid, p_password_hash text) returns boolean
language plpgsql security definer set search_path = instar, pg_temp
as $$
begin
  update "user" u set password_hash = p_password_hash
  where u.id = p_user and u.disabled_at is null and exists (
    select from role_binding b
    where b.user_id = u.id and b.project_id = instar.current_project());
  if not found then
    return false;
  end if;
  perform instar.end_user_sessions(p_user);
  return true;
end $$;

-- Whether a project keeps an administrator without one person or key: somebody who can sign in, or a
-- whole key that does not run out. Whoever asks holds the answer until the transaction ends.
create function instar.admin_left(p_project uuid, p_without uuid) returns boolean
language plpgsql security definer set search_path = instar, pg_temp
as $$
begin
  perform pg_advisory_xact_lock(hashtextextended('instar.admins:' || p_project, 0));
  return exists (
    select from api_key k
    where k.project_id = p_project and k.id <> p_without and k.role = 'admin' and k.agent = ''
      and k.revoked_at is null and k.expires_at is null and k.scopes = '[]'::jsonb)
  or exists (
    select from role_binding b join "user" u on u.id = b.user_id
    where b.project_id = p_project and b.user_id <> p_without and b.role = 'admin'
      and u.disabled_at is null and (u.password_hash <> '' or u.subject <> ''));
end $$;
revoke all on function instar.admin_left(uuid, uuid) from public;

create function instar.keeps_admin(p_without uuid) returns boolean
language sql security definer set search_path = instar, pg_temp
as $$ select instar.admin_left(instar.current_project(), p_without) $$;

-- 'done', 'unknown' (nobody with a role in the caller's project), or 'last_admin' where a project would
-- be left without anybody in charge.
create function instar.disable_user(p_user uuid) returns text
language plpgsql security definer set search_path = instar, pg_temp
as $$
declare
  led uuid;
begin
  if not exists (
    select from role_binding b
    where b.user_id = p_user and b.project_id = instar.current_project())
  then
    return 'unknown';
  end if;
  for led in
    select b.project_id from role_binding b join project p on p.id = b.project_id
    where b.user_id = p_user and b.role = 'admin' and p.deleted_at is null order by 1
  loop
    if not instar.admin_left(led, p_user) then
      return 'last_admin';
    end if;
  end loop;
  update "user" set disabled_at = coalesce(disabled_at, clock_timestamp()) where id = p_user;
  perform instar.end_user_sessions(p_user);
  return 'done';
end $$;

create function instar.begin_sign_in(p_state_hash text, p_document json, p_lifetime_s double precision)
returns void
language sql security definer set search_path = instar, pg_temp
as $$
  delete from sign_in where expires_at < clock_timestamp();
  insert into sign_in (state_hash, document, expires_at)
  values (p_state_hash, p_document, clock_timestamp() + make_interval(secs => p_lifetime_s))
$$;

-- What was begun under a state; gone afterwards, so that no state serves twice.
create function instar.take_sign_in(p_state_hash text) returns json
language sql security definer set search_path = instar, pg_temp
as $$
  with taken as (
    delete from sign_in where state_hash = p_state_hash returning document, expires_at)
  select document from taken where expires_at > clock_timestamp()
$$;

do $$
declare
  made regprocedure;
begin
  for made in
    select p.oid::regprocedure from pg_proc p
    where p.pronamespace = 'instar'::regnamespace and p.proname = any (array[
      'find_api_key', 'has_credential', 'try_login', 'clear_login', 'find_login', 'find_user',
      'find_subject', 'create_user', 'link_subject', 'list_user_projects', 'open_session',
      'find_session', 'switch_session', 'end_session', 'end_user_sessions', 'set_password',
      'keeps_admin', 'disable_user', 'begin_sign_in', 'take_sign_in'])
  loop
    execute format('revoke all on function %s from public', made);
    execute format('grant execute on function %s to instar_app', made);
  end loop;
end $$;
