-- What lineage, undoing a run and rebasing learned changes look things up by, and open conflicts.

create index ix_version_base on instar.version (base_id) where base_id is not null;
create index ix_rollout_candidate on instar.rollout (project_id, candidate_digest);
create index ix_evaluation_candidate on instar.evaluation (project_id, candidate_digest);
create index ix_proposal_run_id on instar.proposal (run_id);
create index ix_proposal_agent_version_id on instar.proposal (agent_version_id);

create table instar.overlay_conflict (
  id uuid not null,
  project_id uuid not null,
  artifact_id uuid not null,
  overlay_id uuid not null,
  former_base_id uuid not null,
  base_id uuid not null,
  conflicts json not null,
  resolution text default '' not null,
  resolved_version_id uuid,
  resolved_by text default '' not null,
  created_at timestamp with time zone default clock_timestamp() not null,
  resolved_at timestamp with time zone,
  constraint pk_overlay_conflict primary key (id),
  constraint ck_overlay_conflict_resolution
    check (resolution in ('', 'merged', 'superseded', 'dismissed')),
  constraint fk_overlay_conflict_project_id foreign key (project_id) references instar.project (id),
  constraint fk_overlay_conflict_artifact_id
    foreign key (artifact_id) references instar.artifact (id),
  constraint fk_overlay_conflict_overlay_id foreign key (overlay_id) references instar.version (id),
  constraint fk_overlay_conflict_former_base_id
    foreign key (former_base_id) references instar.version (id),
  constraint fk_overlay_conflict_base_id foreign key (base_id) references instar.version (id)
);
create unique index uq_overlay_conflict_open on instar.overlay_conflict (overlay_id, base_id)
  where resolution = '';
create index ix_overlay_conflict_project_id_created_at_id
  on instar.overlay_conflict (project_id, created_at, id);
create index ix_overlay_conflict_artifact_id on instar.overlay_conflict (artifact_id);

select instar.protect_table('instar.overlay_conflict'::regclass, 'project_id');
grant select, insert, update on instar.overlay_conflict to instar_app;
