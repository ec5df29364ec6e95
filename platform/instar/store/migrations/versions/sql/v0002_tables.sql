-- Columns and tables of the registry, of people and secrets, and of the audit chain.

alter table instar.api_key add column instance boolean default false not null;
alter table instar.api_key add column agent text default '' not null;
alter table instar.api_key add column created_by text default '' not null;

alter table instar.artifact add column skeleton text default '' not null;
alter table instar.artifact add column owner_kind varchar default 'person' not null;
alter table instar.artifact add column job_access varchar default 'none' not null;
alter table instar.artifact add column search tsvector default ''::tsvector not null;
alter table instar.artifact add constraint ck_artifact_owner_kind
  check (owner_kind in ('person', 'run', 'system'));
alter table instar.artifact add constraint ck_artifact_job_access
  check (job_access in ('none', 'overlay'));
create index ix_artifact_project_id_kind_created_at_id
  on instar.artifact (project_id, kind, created_at, id);
create unique index uq_artifact_skeleton on instar.artifact (project_id, kind, skeleton)
  where skeleton <> '';

alter table instar.version add column origin varchar default 'save' not null;
alter table instar.version add column base_id uuid;
alter table instar.version add column run_id uuid;
alter table instar.version add constraint ck_version_origin
  check (origin in ('save', 'overlay', 'rebase', 'merge', 'copy', 'import', 'restore'));
alter table instar.version add constraint fk_version_base_id
  foreign key (base_id) references instar.version (id);
create index ix_version_run on instar.version (run_id) where run_id is not null;
create index ix_version_parent_parent_id on instar.version_parent (parent_id);

create table instar.version_rollout (
  version_id uuid not null,
  rollout_id uuid not null,
  project_id uuid not null,
  constraint pk_version_rollout primary key (version_id, rollout_id),
  constraint fk_version_rollout_version_id foreign key (version_id) references instar.version (id),
  constraint fk_version_rollout_project_id foreign key (project_id) references instar.project (id)
);
create index ix_version_rollout_rollout_id on instar.version_rollout (rollout_id);

alter table instar.label add column move_role varchar default 'operator' not null;
alter table instar.label add constraint ck_label_move_role
  check (move_role in ('operator', 'approver', 'admin'));
create index ix_label_version_id on instar.label (version_id);
alter table instar.label_event add column run_id uuid;
alter table instar.label_event add column imported json;
create index ix_label_event_run on instar.label_event (run_id) where run_id is not null;

create table instar."user" (
  id uuid not null,
  email varchar not null,
  name text default '' not null,
  password_hash text default '' not null,
  issuer text default '' not null,
  subject text default '' not null,
  instance boolean default false not null,
  created_at timestamp with time zone default clock_timestamp() not null,
  disabled_at timestamp with time zone,
  constraint pk_user primary key (id)
);
create unique index uq_user_email on instar."user" (lower(email));
create unique index uq_user_subject on instar."user" (issuer, subject) where subject <> '';

create table instar.login_failure (
  key varchar not null,
  failures integer default 0 not null,
  at timestamp with time zone default clock_timestamp() not null,
  locked_until timestamp with time zone,
  constraint pk_login_failure primary key (key)
);
create index ix_login_failure_at on instar.login_failure (at);

create table instar.role_binding (
  project_id uuid not null,
  user_id uuid not null,
  role varchar not null,
  created_by text default '' not null,
  created_at timestamp with time zone default clock_timestamp() not null,
  constraint pk_role_binding primary key (project_id, user_id),
  constraint ck_role_binding_role check (role in ('viewer', 'operator', 'approver', 'admin')),
  constraint fk_role_binding_project_id foreign key (project_id) references instar.project (id),
  constraint fk_role_binding_user_id foreign key (user_id) references instar."user" (id)
);
create index ix_role_binding_user_id on instar.role_binding (user_id);

create table instar.session (
  id uuid not null,
  hash varchar not null,
  user_id uuid not null,
  project_id uuid,
  created_at timestamp with time zone default clock_timestamp() not null,
  last_used_at timestamp with time zone,
  expires_at timestamp with time zone default clock_timestamp() not null,
  revoked_at timestamp with time zone,
  constraint pk_session primary key (id),
  constraint uq_session_hash unique (hash),
  constraint fk_session_user_id foreign key (user_id) references instar."user" (id),
  constraint fk_session_project_id foreign key (project_id) references instar.project (id)
);
create index ix_session_user_id on instar.session (user_id);

create table instar.sign_in (
  state_hash varchar not null,
  document json not null,
  expires_at timestamp with time zone default clock_timestamp() not null,
  constraint pk_sign_in primary key (state_hash)
);

create table instar.secret (
  id uuid not null,
  project_id uuid not null,
  name varchar not null,
  use varchar default 'production' not null,
  revision integer default 1 not null,
  key_id varchar not null,
  nonce bytea not null,
  ciphertext bytea not null,
  created_by text default '' not null,
  created_at timestamp with time zone default clock_timestamp() not null,
  updated_at timestamp with time zone default clock_timestamp() not null,
  deleted_at timestamp with time zone,
  constraint pk_secret primary key (id),
  constraint ck_secret_use check (use in ('production', 'rollouts')),
  constraint fk_secret_project_id foreign key (project_id) references instar.project (id)
);
create unique index uq_secret_name on instar.secret (project_id, name) where deleted_at is null;

alter table instar.audit_event add column format integer default 1 not null;

create table instar.audit_head (
  project_id uuid not null,
  stream varchar not null,
  seq bigint default 0 not null,
  hash text default '' not null,
  at timestamp with time zone default clock_timestamp() not null,
  constraint pk_audit_head primary key (project_id, stream),
  constraint fk_audit_head_project_id foreign key (project_id) references instar.project (id)
);

create table instar.audit_checkpoint (
  project_id uuid not null,
  seq bigint not null,
  document json not null,
  hash varchar not null,
  key_id varchar not null,
  signature varchar not null,
  created_at timestamp with time zone default clock_timestamp() not null,
  constraint pk_audit_checkpoint primary key (project_id, seq),
  constraint fk_audit_checkpoint_project_id foreign key (project_id) references instar.project (id)
);

create table instar.audit_sealed (
  project_id uuid not null,
  stream varchar not null,
  seq bigint default 0 not null,
  constraint pk_audit_sealed primary key (project_id, stream),
  constraint fk_audit_sealed_project_id foreign key (project_id) references instar.project (id)
);
