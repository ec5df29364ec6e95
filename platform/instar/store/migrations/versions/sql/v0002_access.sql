-- Users, sessions and sign-ins: what must be looked up before a project is known. Owned by
-- instar_definer; each returns what it names and nothing else.
select 1;
