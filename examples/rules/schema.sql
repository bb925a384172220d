-- The application's own tables, and the triggers by which a rule gets its embedding job. Applied after the queue's own
-- schema is there, and safe to apply again.

CREATE EXTENSION IF NOT EXISTS vector;

CREATE TABLE IF NOT EXISTS projects (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    name text NOT NULL UNIQUE CHECK (name ~ '\S')
);

CREATE TABLE IF NOT EXISTS users (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    email text NOT NULL UNIQUE CHECK (email ~ '\S')
);

-- One row: the model that rules are embedded with. Vectors of two models cannot be compared, so all change together.
CREATE TABLE IF NOT EXISTS embedding_model (
    only_one boolean PRIMARY KEY DEFAULT true CHECK (only_one),
    name text NOT NULL,
    dimensions integer NOT NULL CHECK (dimensions BETWEEN 1 AND 16000) -- what pgvector stores
);

-- What of a rule is embedded.
CREATE OR REPLACE FUNCTION rule_text(title text, guidance text, rationale text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
$$ SELECT concat(title, ' ', guidance, ' ', rationale) $$;

CREATE TABLE IF NOT EXISTS rules (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    rule_id text NOT NULL, -- the name by which people know it
    project_id uuid REFERENCES projects ON DELETE CASCADE,
    created_by uuid REFERENCES users ON DELETE SET NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    title text NOT NULL CHECK (title ~ '\S'),
    guidance text NOT NULL,
    rationale text,
    priority text NOT NULL DEFAULT 'normal' CHECK (priority IN ('critical', 'high', 'normal', 'low')),
    text_hash text NOT NULL GENERATED ALWAYS AS (md5(rule_text(title, guidance, rationale))) STORED,

    embedding vector, -- gets the dimensions of the model when one is chosen
    embedding_dimensions integer,
    embedding_model text,
    embedded_at timestamptz,
    embedding_ms double precision,

    UNIQUE NULLS NOT DISTINCT (project_id, rule_id),
    CONSTRAINT embedded_as_a_whole CHECK (
        num_nonnulls(embedding, embedding_dimensions, embedding_model, embedded_at, embedding_ms) IN (0, 5)),
    CONSTRAINT dimensions_are_those_of_the_vector CHECK (vector_dims(embedding) = embedding_dimensions),
    CONSTRAINT time_is_not_negative CHECK (embedding_ms >= 0)
);
CREATE INDEX IF NOT EXISTS rules_text_hash ON rules (text_hash);
CREATE INDEX IF NOT EXISTS rules_created_by ON rules (created_by); -- a user who goes is looked up here

-- 'urgent' for what is critical, 'high' for what is high, 'normal' for all else; 'low' is for work in bulk.
CREATE OR REPLACE FUNCTION job_priority(of_rule text) RETURNS integer LANGUAGE sql IMMUTABLE AS
$$ SELECT CASE of_rule WHEN 'critical' THEN 100 WHEN 'high' THEN 75 ELSE 50 END $$;

-- The embedding queue as a table: its columns, by its names and types, of the jobs that the queue keeps.
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_class WHERE oid = to_regclass('embedding_jobs') AND relkind = 'r') THEN
        RAISE EXCEPTION 'embedding_jobs is a table, and becomes a view: import its jobs, rename it, and run setup again';
    END IF;
    CREATE TYPE job_status AS ENUM ('pending', 'processing', 'completed', 'failed', 'retrying');
EXCEPTION WHEN duplicate_object THEN NULL;
END $$;
ALTER TYPE job_status ADD VALUE IF NOT EXISTS 'cancelled';
DO $$
BEGIN
    CREATE TYPE job_priority AS ENUM ('low', 'normal', 'high', 'urgent');
EXCEPTION WHEN duplicate_object THEN NULL;
END $$;
CREATE OR REPLACE VIEW embedding_jobs AS
SELECT j.job_id AS id, (j.payload ->> 'rule_id')::uuid AS rule_id,
    (CASE WHEN j.status IN ('waiting', 'scheduled') THEN 'pending' ELSE j.status END)::job_status AS status,
    (CASE WHEN j.priority > 75 THEN 'urgent' WHEN j.priority > 50 THEN 'high' WHEN j.priority > 25 THEN 'normal'
        ELSE 'low' END)::job_priority AS priority,
    j.payload ->> 'embedding_model' AS embedding_model, j.payload ->> 'input_text' AS input_text,
    md5(j.payload ->> 'input_text') AS text_hash,
    -- A try counts from its start, as it did there.
    j.failures + CASE WHEN j.attempt > 0 AND j.status IN ('processing', 'completed') THEN 1 ELSE 0 END AS attempts,
    j.max_attempts, j.created_at, j.started_at, j.completed_at,
    (j.result ->> 'embedding_vector')::vector AS embedding_vector,
    (j.result ->> 'embedding_dimensions')::integer AS embedding_dimensions, j.last_error AS error_message,
    j.processing_time_ms::integer AS processing_time_ms, j.worker_id, j.worker_version, r.project_id, r.created_by
FROM backstay.jobs AS j LEFT JOIN rules AS r ON r.id = (j.payload ->> 'rule_id')::uuid
WHERE j.job_type = 'embedding';

-- A job needs its rule, from whichever side it comes, and the model that all rules are embedded with. What else follows
-- from its payload is declared with its handler, in jobs.py. NOWAIT: whoever deletes the rule right now holds it and
-- wants its jobs next, and a job that shares its result holds that of another; so the submit lets go and is repeated.
CREATE OR REPLACE FUNCTION job_needs_rule() RETURNS trigger LANGUAGE plpgsql AS
$$
DECLARE
    payload jsonb := NEW.payload;
    asked text := payload ->> 'embedding_model';
    chosen text := (SELECT name FROM embedding_model);
BEGIN
    IF NEW.payload::jsonb ->> 'rule_id' ~ '^[0-9a-fA-F-]{32,36}$' THEN
        PERFORM FROM rules WHERE id = (payload ->> 'rule_id')::uuid FOR KEY SHARE NOWAIT;
    END IF;
    IF FOUND IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = 'BS005', MESSAGE = format(
            'there is no rule %s: nothing was stored', coalesce(payload ->> 'rule_id', 'without an id'));
    ELSIF asked IS DISTINCT FROM chosen THEN
        RAISE EXCEPTION USING ERRCODE = 'BS005', MESSAGE = format(
            'rules are embedded with %s, and this job asks for %s: set embedding_model, or choose another model for all'
            ' rules with "python -m rules setup --model"', chosen, coalesce(asked, 'none'));
    END IF;
    RETURN NEW;
END
$$;
CREATE OR REPLACE TRIGGER rules_needed BEFORE INSERT ON backstay.job
    FOR EACH ROW WHEN (NEW.job_type = 'embedding') EXECUTE FUNCTION job_needs_rule();

-- A job for a rule. A text that is known is not embedded again: the job is completed at once and the rule gets the
-- vector here; one that is being embedded for another rule comes to this one, too, from `keep_vector`.
CREATE OR REPLACE FUNCTION submit_embedding(rule rules, priority integer) RETURNS uuid LANGUAGE plpgsql AS
$$
DECLARE
    chosen embedding_model;
    shared text;
    job uuid;
BEGIN
    SELECT * INTO chosen FROM embedding_model;
    IF chosen IS NULL THEN
        RAISE EXCEPTION 'no embedding model is chosen: run "python -m rules setup"';
    END IF;
    FOREACH shared IN ARRAY ARRAY[NULL, 'false'] LOOP
        job := backstay.submit(
            'embedding',
            jsonb_build_object(
                'rule_id', rule.id,
                'project_id', rule.project_id,
                'input_text', rule_text(rule.title, rule.guidance, rule.rationale),
                'text_hash', rule.text_hash,
                'embedding_model', chosen.name,
                'embedding_dimensions', chosen.dimensions),
            priority => priority,
            tags => array_remove(ARRAY['project:' || rule.project_id], NULL),
            reuse => shared, -- NULL: as it is declared
            created_by => 'trigger:rules');
        UPDATE rules SET embedding = done.embedding_vector, embedding_dimensions = done.embedding_dimensions,
            embedding_model = chosen.name, embedded_at = now(), embedding_ms = 0
        FROM embedding_jobs AS done
        WHERE done.id = job AND vector_dims(done.embedding_vector) = chosen.dimensions AND rules.id = rule.id;
        -- A known vector that is too long for a row, or from when the model had other dimensions, is made again.
        EXIT WHEN FOUND OR NOT EXISTS (SELECT FROM backstay.jobs WHERE job_id = job AND status = 'completed');
    END LOOP;
    RETURN job;
END
$$;

-- A vector belongs to its text, and goes with it.
CREATE OR REPLACE FUNCTION forget_vector() RETURNS trigger LANGUAGE plpgsql AS
$$
BEGIN
    -- The generated column is not filled yet.
    IF md5(rule_text(NEW.title, NEW.guidance, NEW.rationale)) <> OLD.text_hash THEN
        NEW.embedding := NULL;
        NEW.embedding_dimensions := NULL;
        NEW.embedding_model := NULL;
        NEW.embedded_at := NULL;
        NEW.embedding_ms := NULL;
    END IF;
    RETURN NEW;
END
$$;
CREATE OR REPLACE TRIGGER rules_forget_vector BEFORE UPDATE ON rules FOR EACH ROW EXECUTE FUNCTION forget_vector();

-- After it: its job, in the same transaction. What still waits for the text before is not worth a call of the model.
CREATE OR REPLACE FUNCTION submit_rule() RETURNS trigger LANGUAGE plpgsql AS
$$
BEGIN
    IF TG_OP = 'UPDATE' THEN
        IF NEW.text_hash = OLD.text_hash THEN
            RETURN NULL;
        END IF;
        PERFORM backstay.cancel_jobs('embedding', 'rule:' || NEW.id, 'trigger:rules');
    END IF;
    PERFORM submit_embedding(NEW, job_priority(NEW.priority));
    RETURN NULL;
END
$$;
CREATE OR REPLACE TRIGGER rules_submit AFTER INSERT OR UPDATE ON rules
    FOR EACH ROW EXECUTE FUNCTION submit_rule();

-- What a completed job does to its rule, in the commit that completes it, and to every rule with the same text: their
-- jobs wait for this one. Only rules that have this text get the vector, and only while its model is the chosen one.
CREATE OR REPLACE FUNCTION keep_vector(of_rule uuid, hash text, numbers real[], model text, took_ms double precision)
RETURNS void LANGUAGE plpgsql AS
$$
BEGIN
    -- NOWAIT: whoever changes or deletes the rule right now holds it and wants its jobs next, while the completion holds
    -- the job; to wait for each other would be a deadlock. So the completion lets go, and the queue repeats it.
    PERFORM FROM rules WHERE text_hash = hash AND embedding IS NULL ORDER BY id FOR NO KEY UPDATE NOWAIT;
    PERFORM FROM rules WHERE id = of_rule FOR NO KEY UPDATE NOWAIT;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no rule %', of_rule USING ERRCODE = 'foreign_key_violation';
    END IF;
    UPDATE rules SET embedding = numbers::vector, embedding_dimensions = cardinality(numbers), embedding_model = model,
        embedded_at = now(), embedding_ms = took_ms
    WHERE (id = of_rule OR embedding IS NULL) AND text_hash = hash AND EXISTS (SELECT FROM embedding_model WHERE name = model);
END
$$;

-- A rule that goes, by itself or with its project, takes its jobs along, whatever became of them.
CREATE OR REPLACE FUNCTION drop_rule_jobs() RETURNS trigger LANGUAGE plpgsql AS
$$
BEGIN
    PERFORM backstay.drop_jobs('embedding', 'rule:' || OLD.id, 'trigger:rules');
    RETURN NULL;
END
$$;
CREATE OR REPLACE TRIGGER rules_gone AFTER DELETE ON rules FOR EACH ROW EXECUTE FUNCTION drop_rule_jobs();

-- Another model: every rule is embedded again, behind all other work. Jobs come first and the table after: who
-- completes a job holds the job, and then the rule.
CREATE OR REPLACE FUNCTION choose_model(new_name text, new_dimensions integer) RETURNS integer LANGUAGE plpgsql AS
$$
DECLARE
    each rules;
    again integer := 0;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('rules choose_model', 0));
    IF EXISTS (SELECT FROM embedding_model WHERE name = new_name AND dimensions = new_dimensions) THEN
        RETURN 0;
    END IF;
    PERFORM backstay.cancel_jobs('embedding', 'rule:' || id, 'choose_model') FROM rules ORDER BY id;
    DROP INDEX IF EXISTS rules_embedding;
    DELETE FROM embedding_model;
    INSERT INTO embedding_model (name, dimensions) VALUES (new_name, new_dimensions);
    UPDATE rules SET embedding = NULL, embedding_dimensions = NULL, embedding_model = NULL, embedded_at = NULL,
        embedding_ms = NULL WHERE embedding IS NOT NULL;
    EXECUTE format('ALTER TABLE rules ALTER COLUMN embedding TYPE vector(%s)', new_dimensions);
    -- An index of pgvector takes 2,000 dimensions of 4 bytes, or 4,000 of 2; beyond that, a search reads all vectors.
    IF new_dimensions <= 2000 THEN
        CREATE INDEX rules_embedding ON rules USING hnsw (embedding vector_cosine_ops);
    ELSIF new_dimensions <= 4000 THEN
        EXECUTE format('CREATE INDEX rules_embedding ON rules USING hnsw ((embedding::halfvec(%s)) halfvec_cosine_ops)',
            new_dimensions);
    END IF;
    FOR each IN SELECT * FROM rules ORDER BY created_at, id LOOP
        PERFORM submit_embedding(each, 25);
        again := again + 1;
    END LOOP;
    RETURN again;
END
$$;
