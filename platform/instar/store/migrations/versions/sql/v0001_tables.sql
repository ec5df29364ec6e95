CREATE TABLE instar.audit_event (
  id UUID NOT NULL,
  project_id UUID NOT NULL,
  stream VARCHAR NOT NULL,
  seq BIGINT DEFAULT 0 NOT NULL,
  actor_kind VARCHAR NOT NULL,
  actor TEXT DEFAULT '' NOT NULL,
  action VARCHAR NOT NULL,
  subject TEXT DEFAULT '' NOT NULL,
  details JSON,
  previous_hash TEXT DEFAULT '' NOT NULL,
  hash TEXT DEFAULT '' NOT NULL,
  created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
  CONSTRAINT pk_audit_event PRIMARY KEY (id)
)
 PARTITION BY RANGE (id);

CREATE INDEX ix_audit_event_project_id_stream_seq ON instar.audit_event (project_id, stream, seq);

CREATE TABLE instar.effect (
  run_id UUID NOT NULL,
  key VARCHAR NOT NULL,
  project_id UUID NOT NULL,
  kind VARCHAR NOT NULL,
  content VARCHAR NOT NULL,
  status VARCHAR NOT NULL,
  request JSON,
  result JSON,
  attempt INTEGER DEFAULT 1 NOT NULL,
  reserved_rollouts BIGINT DEFAULT 0 NOT NULL,
  reserved_tokens BIGINT DEFAULT 0 NOT NULL,
  reserved_cost_usd NUMERIC(20, 10) DEFAULT 0 NOT NULL,
  reserved_wall_s FLOAT(53) DEFAULT 0 NOT NULL,
  usage JSON,
  usage_rollouts BIGINT DEFAULT 0 NOT NULL,
  usage_tokens BIGINT DEFAULT 0 NOT NULL,
  usage_cost_usd NUMERIC(20, 10) DEFAULT 0 NOT NULL,
  usage_wall_s FLOAT(53) DEFAULT 0 NOT NULL,
  fencing_token BIGINT DEFAULT 0 NOT NULL,
  started_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
  finished_at TIMESTAMP WITH TIME ZONE,
  CONSTRAINT pk_effect PRIMARY KEY (run_id, key),
  CONSTRAINT ck_effect_status CHECK (status in ('started', 'finished', 'abandoned'))
)
 PARTITION BY RANGE (run_id);

CREATE TABLE instar.installation (
  id UUID NOT NULL,
  created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
  CONSTRAINT pk_installation PRIMARY KEY (id)
);

CREATE TABLE instar.model_call (
  run_id UUID NOT NULL,
  id UUID NOT NULL,
  project_id UUID NOT NULL,
  rollout_id UUID,
  key TEXT DEFAULT '' NOT NULL,
  purpose TEXT DEFAULT '' NOT NULL,
  model VARCHAR NOT NULL,
  status VARCHAR NOT NULL,
  request_hash TEXT DEFAULT '' NOT NULL,
  usage JSON,
  error JSON,
  started_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
  finished_at TIMESTAMP WITH TIME ZONE,
  CONSTRAINT pk_model_call PRIMARY KEY (run_id, id)
)
 PARTITION BY RANGE (run_id);

CREATE INDEX ix_model_call_rollout_id ON instar.model_call (rollout_id);

CREATE TABLE instar.project (
  id UUID NOT NULL,
  name VARCHAR NOT NULL,
  settings JSONB DEFAULT '{}'::jsonb NOT NULL,
  created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
  deleted_at TIMESTAMP WITH TIME ZONE,
  CONSTRAINT pk_project PRIMARY KEY (id),
  CONSTRAINT uq_project_name UNIQUE (name)
);

CREATE TABLE instar.rollout (
  id UUID NOT NULL,
  project_id UUID NOT NULL,
  run_id UUID,
  candidate_digest VARCHAR NOT NULL,
  agent_version_id UUID,
  task_id VARCHAR NOT NULL,
  task_digest TEXT DEFAULT '' NOT NULL,
  draw INTEGER NOT NULL,
  arm TEXT DEFAULT '' NOT NULL,
  sealed_test_id UUID,
  stop VARCHAR NOT NULL,
  answer JSON,
  final_state JSON,
  opening JSON,
  steps INTEGER NOT NULL,
  reward DOUBLE PRECISION,
  usage JSON,
  error JSON,
  created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
  CONSTRAINT pk_rollout PRIMARY KEY (id)
)
 PARTITION BY RANGE (id);

CREATE INDEX ix_rollout_project_id_created_at_id ON instar.rollout (project_id, created_at, id);

CREATE INDEX ix_rollout_run_id_candidate_digest ON instar.rollout (run_id, candidate_digest);

CREATE TABLE instar.rollout_score (
  rollout_id UUID NOT NULL,
  verifier VARCHAR NOT NULL,
  project_id UUID NOT NULL,
  reward DOUBLE PRECISION NOT NULL,
  feedback JSON,
  details JSON,
  created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
  CONSTRAINT pk_rollout_score PRIMARY KEY (rollout_id, verifier)
)
 PARTITION BY RANGE (rollout_id);

CREATE TABLE instar.run_event (
  run_id UUID NOT NULL,
  seq INTEGER NOT NULL,
  project_id UUID NOT NULL,
  source_seq INTEGER,
  kind VARCHAR NOT NULL,
  message JSON,
  data JSON,
  fencing_token BIGINT DEFAULT 0 NOT NULL,
  created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
  CONSTRAINT pk_run_event PRIMARY KEY (run_id, seq)
)
 PARTITION BY RANGE (run_id);

CREATE TABLE instar.step (
  rollout_id UUID NOT NULL,
  index INTEGER NOT NULL,
  project_id UUID NOT NULL,
  kind VARCHAR NOT NULL,
  message_hash VARCHAR NOT NULL,
  request_hash TEXT DEFAULT '' NOT NULL,
  model TEXT DEFAULT '' NOT NULL,
  finish_reason TEXT DEFAULT '' NOT NULL,
  tool_call JSON,
  is_error BOOLEAN DEFAULT false NOT NULL,
  usage JSON,
  prompt_ids BYTEA,
  reply_ids BYTEA,
  logprobs BYTEA,
  adapter TEXT DEFAULT '' NOT NULL,
  created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
  CONSTRAINT pk_step PRIMARY KEY (rollout_id, index)
)
 PARTITION BY RANGE (rollout_id);

CREATE TABLE instar.tool_call (
  run_id UUID NOT NULL,
  id UUID NOT NULL,
  project_id UUID NOT NULL,
  rollout_id UUID,
  key TEXT DEFAULT '' NOT NULL,
  server TEXT DEFAULT '' NOT NULL,
  tool VARCHAR NOT NULL,
  status VARCHAR NOT NULL,
  arguments JSON,
  result JSON,
  usage JSON,
  error JSON,
  started_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
  finished_at TIMESTAMP WITH TIME ZONE,
  CONSTRAINT pk_tool_call PRIMARY KEY (run_id, id)
)
 PARTITION BY RANGE (run_id);

CREATE INDEX ix_tool_call_rollout_id ON instar.tool_call (rollout_id);

CREATE TABLE instar.api_key (
  id UUID NOT NULL,
  project_id UUID NOT NULL,
  name VARCHAR NOT NULL,
  prefix VARCHAR NOT NULL,
  hash VARCHAR NOT NULL,
  role VARCHAR NOT NULL,
  scopes JSONB DEFAULT '[]'::jsonb NOT NULL,
  created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
  expires_at TIMESTAMP WITH TIME ZONE,
  revoked_at TIMESTAMP WITH TIME ZONE,
  last_used_at TIMESTAMP WITH TIME ZONE,
  CONSTRAINT pk_api_key PRIMARY KEY (id),
  CONSTRAINT fk_api_key_project_id FOREIGN KEY(project_id) REFERENCES instar.project (id),
  CONSTRAINT uq_api_key_hash UNIQUE (hash)
);

CREATE TABLE instar.artifact (
  id UUID NOT NULL,
  project_id UUID NOT NULL,
  kind VARCHAR NOT NULL,
  name VARCHAR NOT NULL,
  description TEXT DEFAULT '' NOT NULL,
  tags JSONB DEFAULT '[]'::jsonb NOT NULL,
  last_version INTEGER DEFAULT 0 NOT NULL,
  revision INTEGER DEFAULT 0 NOT NULL,
  created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
  deleted_at TIMESTAMP WITH TIME ZONE,
  CONSTRAINT pk_artifact PRIMARY KEY (id),
  CONSTRAINT fk_artifact_project_id FOREIGN KEY(project_id) REFERENCES instar.project (id)
);

CREATE INDEX ix_artifact_project_id_created_at_id ON instar.artifact (project_id, created_at, id);

CREATE UNIQUE INDEX ix_artifact_project_id_kind_name ON instar.artifact (project_id, kind, name);

CREATE TABLE instar.blob (
  project_id UUID NOT NULL,
  digest VARCHAR NOT NULL,
  size INTEGER NOT NULL,
  content BYTEA NOT NULL,
  created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
  CONSTRAINT pk_blob PRIMARY KEY (project_id, digest),
  CONSTRAINT fk_blob_project_id FOREIGN KEY(project_id) REFERENCES instar.project (id)
);

CREATE TABLE instar.budget (
  id UUID NOT NULL,
  project_id UUID NOT NULL,
  kind VARCHAR NOT NULL,
  subject VARCHAR NOT NULL,
  parent_id UUID,
  limit_rollouts BIGINT,
  limit_tokens BIGINT,
  limit_cost_usd NUMERIC(20, 10),
  limit_wall_s FLOAT(53),
  reserved_rollouts BIGINT DEFAULT 0 NOT NULL,
  reserved_tokens BIGINT DEFAULT 0 NOT NULL,
  reserved_cost_usd NUMERIC(20, 10) DEFAULT 0 NOT NULL,
  reserved_wall_s FLOAT(53) DEFAULT 0 NOT NULL,
  spent_rollouts BIGINT DEFAULT 0 NOT NULL,
  spent_tokens BIGINT DEFAULT 0 NOT NULL,
  spent_cost_usd NUMERIC(20, 10) DEFAULT 0 NOT NULL,
  spent_wall_s FLOAT(53) DEFAULT 0 NOT NULL,
  created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
  CONSTRAINT pk_budget PRIMARY KEY (id),
  CONSTRAINT ck_budget_kind CHECK (kind in ('project', 'agent', 'day', 'run')),
  CONSTRAINT ck_budget_reserved CHECK (reserved_rollouts >= 0 and reserved_tokens >= 0 and reserved_cost_usd >= 0),
  CONSTRAINT fk_budget_project_id FOREIGN KEY(project_id) REFERENCES instar.project (id),
  CONSTRAINT fk_budget_parent_id FOREIGN KEY(parent_id) REFERENCES instar.budget (id)
);

CREATE UNIQUE INDEX ix_budget_project_id_kind_subject ON instar.budget (project_id, kind, subject);

CREATE TABLE instar.idempotency_key (
  project_id UUID NOT NULL,
  key VARCHAR NOT NULL,
  request_hash VARCHAR NOT NULL,
  status INTEGER,
  response JSON,
  created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
  expires_at TIMESTAMP WITH TIME ZONE,
  CONSTRAINT pk_idempotency_key PRIMARY KEY (project_id, key),
  CONSTRAINT fk_idempotency_key_project_id FOREIGN KEY(project_id) REFERENCES instar.project (id)
);

CREATE TABLE instar.job (
  id UUID NOT NULL,
  project_id UUID NOT NULL,
  queue VARCHAR DEFAULT 'default' NOT NULL,
  kind VARCHAR NOT NULL,
  payload JSONB DEFAULT '{}'::jsonb NOT NULL,
  state VARCHAR DEFAULT 'queued' NOT NULL,
  attempts INTEGER DEFAULT 0 NOT NULL,
  max_attempts INTEGER DEFAULT 5 NOT NULL,
  fencing_token BIGINT DEFAULT 0 NOT NULL,
  worker TEXT DEFAULT '' NOT NULL,
  lease_until TIMESTAMP WITH TIME ZONE,
  heartbeat_at TIMESTAMP WITH TIME ZONE,
  run_after TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
  cancel_requested BOOLEAN DEFAULT false NOT NULL,
  last_error TEXT DEFAULT '' NOT NULL,
  created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
  finished_at TIMESTAMP WITH TIME ZONE,
  CONSTRAINT pk_job PRIMARY KEY (id),
  CONSTRAINT ck_job_state CHECK (state in ('queued', 'leased', 'running', 'succeeded', 'failed', 'cancelled', 'dead')),
  CONSTRAINT fk_job_project_id FOREIGN KEY(project_id) REFERENCES instar.project (id)
);

CREATE INDEX ix_job_due ON instar.job (queue, run_after) WHERE state = 'queued';

CREATE INDEX ix_job_leased ON instar.job (lease_until) WHERE state in ('leased', 'running');

CREATE INDEX ix_job_project_id_created_at_id ON instar.job (project_id, created_at, id);

CREATE TABLE instar.mcp_server (
  id UUID NOT NULL,
  project_id UUID NOT NULL,
  name VARCHAR NOT NULL,
  config JSONB DEFAULT '{}'::jsonb NOT NULL,
  created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
  updated_at TIMESTAMP WITH TIME ZONE,
  deleted_at TIMESTAMP WITH TIME ZONE,
  CONSTRAINT pk_mcp_server PRIMARY KEY (id),
  CONSTRAINT fk_mcp_server_project_id FOREIGN KEY(project_id) REFERENCES instar.project (id)
);

CREATE UNIQUE INDEX uq_mcp_server_name ON instar.mcp_server (project_id, name) WHERE deleted_at is null;

CREATE TABLE instar.message (
  project_id UUID NOT NULL,
  hash VARCHAR NOT NULL,
  content JSON NOT NULL,
  CONSTRAINT pk_message PRIMARY KEY (project_id, hash),
  CONSTRAINT fk_message_project_id FOREIGN KEY(project_id) REFERENCES instar.project (id)
);

CREATE TABLE instar.outbox (
  id UUID NOT NULL,
  project_id UUID NOT NULL,
  topic VARCHAR NOT NULL,
  ref_id UUID NOT NULL,
  created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
  sent_at TIMESTAMP WITH TIME ZONE,
  CONSTRAINT pk_outbox PRIMARY KEY (id),
  CONSTRAINT fk_outbox_project_id FOREIGN KEY(project_id) REFERENCES instar.project (id)
);

CREATE INDEX ix_outbox_unsent ON instar.outbox (id) WHERE sent_at is null;

CREATE TABLE instar.price (
  id UUID NOT NULL,
  project_id UUID NOT NULL,
  model VARCHAR NOT NULL,
  prices JSONB DEFAULT '{}'::jsonb NOT NULL,
  source TEXT DEFAULT '' NOT NULL,
  created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
  by UUID,
  CONSTRAINT pk_price PRIMARY KEY (id),
  CONSTRAINT fk_price_project_id FOREIGN KEY(project_id) REFERENCES instar.project (id)
);

CREATE UNIQUE INDEX ix_price_project_id_model ON instar.price (project_id, model);

CREATE TABLE instar.rollout_identity (
  project_id UUID NOT NULL,
  identity VARCHAR NOT NULL,
  rollout_id UUID NOT NULL,
  created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
  CONSTRAINT pk_rollout_identity PRIMARY KEY (project_id, identity),
  CONSTRAINT fk_rollout_identity_project_id FOREIGN KEY(project_id) REFERENCES instar.project (id)
);

CREATE TABLE instar.sealed_epoch (
  id UUID NOT NULL,
  project_id UUID NOT NULL,
  agent VARCHAR NOT NULL,
  number INTEGER NOT NULL,
  task_set VARCHAR NOT NULL,
  tests INTEGER DEFAULT 0 NOT NULL,
  accepted INTEGER DEFAULT 0 NOT NULL,
  state VARCHAR DEFAULT 'open' NOT NULL,
  start_version_id UUID,
  created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
  closed_at TIMESTAMP WITH TIME ZONE,
  CONSTRAINT pk_sealed_epoch PRIMARY KEY (id),
  CONSTRAINT ck_sealed_epoch_state CHECK (state in ('open', 'closed')),
  CONSTRAINT fk_sealed_epoch_project_id FOREIGN KEY(project_id) REFERENCES instar.project (id)
);

CREATE UNIQUE INDEX ix_sealed_epoch_project_id_agent_number ON instar.sealed_epoch (project_id, agent, number);

CREATE TABLE instar.label_event (
  id UUID NOT NULL,
  project_id UUID NOT NULL,
  artifact_id UUID NOT NULL,
  label VARCHAR NOT NULL,
  from_number INTEGER,
  to_number INTEGER,
  actor_kind VARCHAR NOT NULL,
  actor TEXT DEFAULT '' NOT NULL,
  cause TEXT DEFAULT '' NOT NULL,
  created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
  CONSTRAINT pk_label_event PRIMARY KEY (id),
  CONSTRAINT fk_label_event_project_id FOREIGN KEY(project_id) REFERENCES instar.project (id),
  CONSTRAINT fk_label_event_artifact_id FOREIGN KEY(artifact_id) REFERENCES instar.artifact (id)
);

CREATE INDEX ix_label_event_artifact_id_label_created_at ON instar.label_event (artifact_id, label, created_at);

CREATE TABLE instar.reservation (
  id UUID NOT NULL,
  project_id UUID NOT NULL,
  budget_id UUID NOT NULL,
  run_id UUID,
  key TEXT DEFAULT '' NOT NULL,
  kind VARCHAR NOT NULL,
  state VARCHAR NOT NULL,
  rollouts BIGINT DEFAULT 0 NOT NULL,
  tokens BIGINT DEFAULT 0 NOT NULL,
  cost_usd NUMERIC(20, 10) DEFAULT 0 NOT NULL,
  wall_s FLOAT(53) DEFAULT 0 NOT NULL,
  spent_rollouts BIGINT DEFAULT 0 NOT NULL,
  spent_tokens BIGINT DEFAULT 0 NOT NULL,
  spent_cost_usd NUMERIC(20, 10) DEFAULT 0 NOT NULL,
  spent_wall_s FLOAT(53) DEFAULT 0 NOT NULL,
  fencing_token BIGINT DEFAULT 0 NOT NULL,
  created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
  closed_at TIMESTAMP WITH TIME ZONE,
  CONSTRAINT pk_reservation PRIMARY KEY (id),
  CONSTRAINT ck_reservation_kind CHECK (kind in ('effect', 'block')),
  CONSTRAINT ck_reservation_state CHECK (state in ('open', 'settled', 'released', 'orphaned')),
  CONSTRAINT fk_reservation_project_id FOREIGN KEY(project_id) REFERENCES instar.project (id),
  CONSTRAINT fk_reservation_budget_id FOREIGN KEY(budget_id) REFERENCES instar.budget (id)
);

CREATE INDEX ix_reservation_budget_id_state ON instar.reservation (budget_id, state);

CREATE INDEX ix_reservation_run_id_key ON instar.reservation (run_id, key);

CREATE TABLE instar.sealed_use (
  epoch_id UUID NOT NULL,
  group_key VARCHAR NOT NULL,
  project_id UUID NOT NULL,
  uses INTEGER DEFAULT 0 NOT NULL,
  last_test_id UUID,
  CONSTRAINT pk_sealed_use PRIMARY KEY (epoch_id, group_key),
  CONSTRAINT fk_sealed_use_epoch_id FOREIGN KEY(epoch_id) REFERENCES instar.sealed_epoch (id),
  CONSTRAINT fk_sealed_use_project_id FOREIGN KEY(project_id) REFERENCES instar.project (id)
);

CREATE TABLE instar.version (
  id UUID NOT NULL,
  project_id UUID NOT NULL,
  artifact_id UUID NOT NULL,
  number INTEGER NOT NULL,
  blob_digest VARCHAR NOT NULL,
  media_type VARCHAR NOT NULL,
  subject_digest TEXT DEFAULT '' NOT NULL,
  author_kind VARCHAR NOT NULL,
  author TEXT DEFAULT '' NOT NULL,
  reason TEXT DEFAULT '' NOT NULL,
  evidence JSON,
  created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
  deleted_at TIMESTAMP WITH TIME ZONE,
  CONSTRAINT pk_version PRIMARY KEY (id),
  CONSTRAINT fk_version_project_id_blob_digest FOREIGN KEY(project_id, blob_digest) REFERENCES instar.blob (project_id, digest),
  CONSTRAINT ck_version_number CHECK (number >= 1),
  CONSTRAINT ck_version_author_kind CHECK (author_kind in ('person', 'run', 'system')),
  CONSTRAINT fk_version_project_id FOREIGN KEY(project_id) REFERENCES instar.project (id),
  CONSTRAINT fk_version_artifact_id FOREIGN KEY(artifact_id) REFERENCES instar.artifact (id)
);

CREATE UNIQUE INDEX ix_version_artifact_id_number ON instar.version (artifact_id, number);

CREATE INDEX ix_version_artifact_id_subject_digest ON instar.version (artifact_id, subject_digest);

CREATE INDEX ix_version_project_id_created_at_id ON instar.version (project_id, created_at, id);

CREATE TABLE instar.evolution_run (
  id UUID NOT NULL,
  project_id UUID NOT NULL,
  agent VARCHAR NOT NULL,
  label VARCHAR DEFAULT 'production' NOT NULL,
  state VARCHAR NOT NULL,
  reason TEXT DEFAULT '' NOT NULL,
  evolver VARCHAR NOT NULL,
  evolver_digest TEXT DEFAULT '' NOT NULL,
  config JSON,
  seed BIGINT DEFAULT 0 NOT NULL,
  incumbent_version_id UUID NOT NULL,
  incumbent_digest VARCHAR NOT NULL,
  task_set_version_id UUID,
  task_source TEXT DEFAULT '' NOT NULL,
  budget_id UUID,
  job_id UUID,
  quote JSON,
  result JSON,
  best_digest TEXT DEFAULT '' NOT NULL,
  phase VARCHAR DEFAULT 'waiting' NOT NULL,
  progress JSONB DEFAULT '{}'::jsonb NOT NULL,
  attempts INTEGER DEFAULT 0 NOT NULL,
  replayed BIGINT DEFAULT 0 NOT NULL,
  in_flight_lost BIGINT DEFAULT 0 NOT NULL,
  writer_token BIGINT DEFAULT 0 NOT NULL,
  writer_batch BIGINT DEFAULT 0 NOT NULL,
  event_seq BIGINT DEFAULT 0 NOT NULL,
  idempotency_key VARCHAR,
  cancel_requested BOOLEAN DEFAULT false NOT NULL,
  created_by TEXT DEFAULT '' NOT NULL,
  created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
  started_at TIMESTAMP WITH TIME ZONE,
  finished_at TIMESTAMP WITH TIME ZONE,
  CONSTRAINT pk_evolution_run PRIMARY KEY (id),
  CONSTRAINT ck_evolution_run_state CHECK (state in ('queued', 'running', 'paused', 'interrupted', 'succeeded', 'no_improvement', 'failed', 'cancelled', 'budget_exhausted')),
  CONSTRAINT fk_evolution_run_project_id FOREIGN KEY(project_id) REFERENCES instar.project (id),
  CONSTRAINT fk_evolution_run_incumbent_version_id FOREIGN KEY(incumbent_version_id) REFERENCES instar.version (id),
  CONSTRAINT fk_evolution_run_task_set_version_id FOREIGN KEY(task_set_version_id) REFERENCES instar.version (id)
);

CREATE INDEX ix_evolution_run_project_id_created_at_id ON instar.evolution_run (project_id, created_at, id);

CREATE UNIQUE INDEX ix_evolution_run_project_id_idempotency_key ON instar.evolution_run (project_id, idempotency_key);

CREATE TABLE instar.label (
  artifact_id UUID NOT NULL,
  name VARCHAR NOT NULL,
  project_id UUID NOT NULL,
  version_id UUID NOT NULL,
  number INTEGER NOT NULL,
  protected BOOLEAN DEFAULT false NOT NULL,
  epoch INTEGER DEFAULT 1 NOT NULL,
  moved_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
  CONSTRAINT pk_label PRIMARY KEY (artifact_id, name),
  CONSTRAINT ck_label_not_digits CHECK (name !~ '^[0-9]+$'),
  CONSTRAINT fk_label_artifact_id FOREIGN KEY(artifact_id) REFERENCES instar.artifact (id),
  CONSTRAINT fk_label_project_id FOREIGN KEY(project_id) REFERENCES instar.project (id),
  CONSTRAINT fk_label_version_id FOREIGN KEY(version_id) REFERENCES instar.version (id)
);

CREATE TABLE instar.run (
  id UUID NOT NULL,
  project_id UUID NOT NULL,
  agent VARCHAR NOT NULL,
  agent_version_id UUID NOT NULL,
  label TEXT DEFAULT '' NOT NULL,
  state VARCHAR NOT NULL,
  input JSON,
  output JSON,
  stop TEXT DEFAULT '' NOT NULL,
  error TEXT DEFAULT '' NOT NULL,
  usage JSON,
  rollout_id UUID,
  job_id UUID,
  created_by TEXT DEFAULT '' NOT NULL,
  created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
  started_at TIMESTAMP WITH TIME ZONE,
  finished_at TIMESTAMP WITH TIME ZONE,
  CONSTRAINT pk_run PRIMARY KEY (id),
  CONSTRAINT ck_run_state CHECK (state in ('queued', 'running', 'succeeded', 'failed', 'cancelled')),
  CONSTRAINT fk_run_project_id FOREIGN KEY(project_id) REFERENCES instar.project (id),
  CONSTRAINT fk_run_agent_version_id FOREIGN KEY(agent_version_id) REFERENCES instar.version (id)
);

CREATE INDEX ix_run_project_id_created_at_id ON instar.run (project_id, created_at, id);

CREATE TABLE instar.sealed_test (
  id UUID NOT NULL,
  project_id UUID NOT NULL,
  epoch_id UUID NOT NULL,
  run_id UUID,
  agent VARCHAR NOT NULL,
  index_in_epoch INTEGER,
  alpha_t FLOAT(53) NOT NULL,
  candidate_digest VARCHAR NOT NULL,
  incumbent_digest VARCHAR NOT NULL,
  task_set_version_id UUID,
  groups JSON NOT NULL,
  groups_used INTEGER DEFAULT 0 NOT NULL,
  resumes INTEGER DEFAULT 0 NOT NULL,
  seed BIGINT NOT NULL,
  config JSON,
  state VARCHAR DEFAULT 'open' NOT NULL,
  verdict VARCHAR,
  outcome JSON,
  opened_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
  closed_at TIMESTAMP WITH TIME ZONE,
  CONSTRAINT pk_sealed_test PRIMARY KEY (id),
  CONSTRAINT ck_sealed_test_state CHECK (state in ('open', 'closed')),
  CONSTRAINT fk_sealed_test_project_id FOREIGN KEY(project_id) REFERENCES instar.project (id),
  CONSTRAINT fk_sealed_test_epoch_id FOREIGN KEY(epoch_id) REFERENCES instar.sealed_epoch (id),
  CONSTRAINT fk_sealed_test_task_set_version_id FOREIGN KEY(task_set_version_id) REFERENCES instar.version (id)
);

CREATE UNIQUE INDEX ix_sealed_test_epoch_id_index_in_epoch ON instar.sealed_test (epoch_id, index_in_epoch);

CREATE UNIQUE INDEX uq_sealed_test_open ON instar.sealed_test (project_id, agent) WHERE state = 'open';

CREATE TABLE instar.task (
  version_id UUID NOT NULL,
  task_id VARCHAR NOT NULL,
  project_id UUID NOT NULL,
  ordinal INTEGER NOT NULL,
  split VARCHAR NOT NULL,
  group_key VARCHAR NOT NULL,
  slice VARCHAR NOT NULL,
  content_digest VARCHAR NOT NULL,
  content JSON,
  CONSTRAINT pk_task PRIMARY KEY (version_id, task_id),
  CONSTRAINT ck_task_split CHECK (split in ('train', 'validation', 'sealed')),
  CONSTRAINT ck_task_sealed_content_apart CHECK ((split = 'sealed') = (content is null)),
  CONSTRAINT fk_task_version_id FOREIGN KEY(version_id) REFERENCES instar.version (id),
  CONSTRAINT fk_task_project_id FOREIGN KEY(project_id) REFERENCES instar.project (id)
);

CREATE INDEX ix_task_version_id_split_group_key ON instar.task (version_id, split, group_key);

CREATE TABLE instar.version_parent (
  version_id UUID NOT NULL,
  parent_id UUID NOT NULL,
  project_id UUID NOT NULL,
  CONSTRAINT pk_version_parent PRIMARY KEY (version_id, parent_id),
  CONSTRAINT fk_version_parent_version_id FOREIGN KEY(version_id) REFERENCES instar.version (id),
  CONSTRAINT fk_version_parent_parent_id FOREIGN KEY(parent_id) REFERENCES instar.version (id),
  CONSTRAINT fk_version_parent_project_id FOREIGN KEY(project_id) REFERENCES instar.project (id)
);

CREATE TABLE instar.version_part (
  version_id UUID NOT NULL,
  name VARCHAR NOT NULL,
  ordinal INTEGER NOT NULL,
  part_id UUID NOT NULL,
  project_id UUID NOT NULL,
  CONSTRAINT pk_version_part PRIMARY KEY (version_id, name),
  CONSTRAINT fk_version_part_version_id FOREIGN KEY(version_id) REFERENCES instar.version (id),
  CONSTRAINT fk_version_part_part_id FOREIGN KEY(part_id) REFERENCES instar.version (id),
  CONSTRAINT fk_version_part_project_id FOREIGN KEY(project_id) REFERENCES instar.project (id)
);

CREATE INDEX ix_version_part_part_id ON instar.version_part (part_id);

CREATE TABLE instar.candidate (
  id UUID NOT NULL,
  project_id UUID NOT NULL,
  run_id UUID NOT NULL,
  digest VARCHAR NOT NULL,
  content JSON NOT NULL,
  parents JSON,
  note JSON,
  created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
  CONSTRAINT pk_candidate PRIMARY KEY (id),
  CONSTRAINT fk_candidate_project_id FOREIGN KEY(project_id) REFERENCES instar.project (id),
  CONSTRAINT fk_candidate_run_id FOREIGN KEY(run_id) REFERENCES instar.evolution_run (id)
);

CREATE UNIQUE INDEX ix_candidate_run_id_digest ON instar.candidate (run_id, digest);

CREATE TABLE instar.evaluation (
  id UUID NOT NULL,
  project_id UUID NOT NULL,
  run_id UUID,
  candidate_digest VARCHAR NOT NULL,
  agent_version_id UUID,
  task_set_version_id UUID,
  split VARCHAR NOT NULL,
  rollouts INTEGER NOT NULL,
  mean DOUBLE PRECISION,
  scores JSON,
  created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
  CONSTRAINT pk_evaluation PRIMARY KEY (id),
  CONSTRAINT fk_evaluation_project_id FOREIGN KEY(project_id) REFERENCES instar.project (id),
  CONSTRAINT fk_evaluation_run_id FOREIGN KEY(run_id) REFERENCES instar.evolution_run (id)
);

CREATE INDEX ix_evaluation_run_id_candidate_digest_split ON instar.evaluation (run_id, candidate_digest, split);

CREATE TABLE instar.proposal (
  id UUID NOT NULL,
  project_id UUID NOT NULL,
  run_id UUID NOT NULL,
  agent VARCHAR NOT NULL,
  label VARCHAR NOT NULL,
  candidate_digest VARCHAR NOT NULL,
  agent_version_id UUID NOT NULL,
  incumbent_version_id UUID NOT NULL,
  sealed_test_id UUID,
  state VARCHAR NOT NULL,
  verdict VARCHAR,
  outcome JSON,
  evidence JSON,
  rule VARCHAR DEFAULT 'person' NOT NULL,
  decided_by TEXT DEFAULT '' NOT NULL,
  decision_reason TEXT DEFAULT '' NOT NULL,
  decided_at TIMESTAMP WITH TIME ZONE,
  created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
  CONSTRAINT pk_proposal PRIMARY KEY (id),
  CONSTRAINT ck_proposal_state CHECK (state in ('testing', 'waiting', 'stale', 'approved', 'rejected', 'withdrawn')),
  CONSTRAINT fk_proposal_project_id FOREIGN KEY(project_id) REFERENCES instar.project (id),
  CONSTRAINT fk_proposal_run_id FOREIGN KEY(run_id) REFERENCES instar.evolution_run (id),
  CONSTRAINT fk_proposal_agent_version_id FOREIGN KEY(agent_version_id) REFERENCES instar.version (id),
  CONSTRAINT fk_proposal_incumbent_version_id FOREIGN KEY(incumbent_version_id) REFERENCES instar.version (id),
  CONSTRAINT fk_proposal_sealed_test_id FOREIGN KEY(sealed_test_id) REFERENCES instar.sealed_test (id)
);

CREATE INDEX ix_proposal_project_id_created_at_id ON instar.proposal (project_id, created_at, id);

CREATE TABLE instar.sealed_task (
  version_id UUID NOT NULL,
  task_id VARCHAR NOT NULL,
  project_id UUID NOT NULL,
  content JSON NOT NULL,
  CONSTRAINT pk_sealed_task PRIMARY KEY (version_id, task_id),
  CONSTRAINT fk_sealed_task_version_id_task_id FOREIGN KEY(version_id, task_id) REFERENCES instar.task (version_id, task_id),
  CONSTRAINT fk_sealed_task_project_id FOREIGN KEY(project_id) REFERENCES instar.project (id)
);

CREATE TABLE instar.promotion (
  id UUID NOT NULL,
  project_id UUID NOT NULL,
  proposal_id UUID NOT NULL,
  agent VARCHAR NOT NULL,
  label VARCHAR NOT NULL,
  from_version_id UUID NOT NULL,
  to_version_id UUID NOT NULL,
  state VARCHAR NOT NULL,
  promoted_by TEXT DEFAULT '' NOT NULL,
  rolled_back_by TEXT DEFAULT '' NOT NULL,
  rolled_back_reason TEXT DEFAULT '' NOT NULL,
  rolled_back_at TIMESTAMP WITH TIME ZONE,
  details JSONB DEFAULT '{}'::jsonb NOT NULL,
  created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
  CONSTRAINT pk_promotion PRIMARY KEY (id),
  CONSTRAINT ck_promotion_state CHECK (state in ('watching', 'kept', 'rolled_back')),
  CONSTRAINT fk_promotion_project_id FOREIGN KEY(project_id) REFERENCES instar.project (id),
  CONSTRAINT uq_promotion_proposal_id UNIQUE (proposal_id),
  CONSTRAINT fk_promotion_proposal_id FOREIGN KEY(proposal_id) REFERENCES instar.proposal (id),
  CONSTRAINT fk_promotion_from_version_id FOREIGN KEY(from_version_id) REFERENCES instar.version (id),
  CONSTRAINT fk_promotion_to_version_id FOREIGN KEY(to_version_id) REFERENCES instar.version (id)
);

CREATE INDEX ix_promotion_project_id_created_at_id ON instar.promotion (project_id, created_at, id);
