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
    dimensions integer NOT NULL CHECK (dimensions BETWEEN 1 AND 2000) -- what an index of pgvector takes
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

-- A job for a rule. With `lent`, its vector is there already: the job is completed at once, by the result of another.
CREATE OR REPLACE FUNCTION submit_embedding(rule rules, priority integer, lent boolean) RETURNS uuid
LANGUAGE plpgsql AS
$$
DECLARE
    model text := (SELECT name FROM embedding_model);
BEGIN
    IF model IS NULL THEN
        RAISE EXCEPTION 'no embedding model is chosen: run "python -m rules setup"';
    END IF;
    RETURN backstay.submit(
        'embedding',
        jsonb_build_object(
            'rule_id', rule.id,
            'project_id', rule.project_id,
            'input_text', rule_text(rule.title, rule.guidance, rule.rationale),
            'text_hash', rule.text_hash,
            'embedding_model', model),
        subject => 'rule:' || rule.id,
        priority => priority,
        tags => array_remove(ARRAY['project:' || rule.project_id], NULL),
        content_hash => model || ':' || rule.text_hash,
        reuse => CASE WHEN lent THEN 'true' END,
        created_by => 'trigger:rules');
END
$$;

-- Before a rule is stored: a text that was embedded for another rule brings its vector along; a new text has none yet.
CREATE OR REPLACE FUNCTION take_known_vector() RETURNS trigger LANGUAGE plpgsql AS
$$
DECLARE
    hash text := md5(rule_text(NEW.title, NEW.guidance, NEW.rationale)); -- the generated column is not filled yet
    known rules;
BEGIN
    IF TG_OP = 'UPDATE' AND hash = OLD.text_hash THEN
        RETURN NEW;
    END IF;
    SELECT rules.* INTO known FROM rules JOIN embedding_model AS chosen ON chosen.name = rules.embedding_model
    WHERE rules.text_hash = hash LIMIT 1;
    NEW.embedding := known.embedding;
    NEW.embedding_dimensions := known.embedding_dimensions;
    NEW.embedding_model := known.embedding_model;
    NEW.embedded_at := known.embedded_at;
    NEW.embedding_ms := known.embedding_ms;
    RETURN NEW;
END
$$;
CREATE OR REPLACE TRIGGER rules_take_known_vector BEFORE INSERT OR UPDATE ON rules
    FOR EACH ROW EXECUTE FUNCTION take_known_vector();

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
    PERFORM submit_embedding(NEW, job_priority(NEW.priority), NEW.embedding IS NOT NULL);
    RETURN NULL;
END
$$;
CREATE OR REPLACE TRIGGER rules_submit AFTER INSERT OR UPDATE ON rules
    FOR EACH ROW EXECUTE FUNCTION submit_rule();

-- What a completed job does to its rule, in the commit that completes it. Only a rule that still has this text gets the
-- vector, and only while its model is the chosen one.
CREATE OR REPLACE FUNCTION keep_vector(of_rule uuid, hash text, numbers real[], model text, took_ms double precision)
RETURNS void LANGUAGE plpgsql AS
$$
BEGIN
    -- NOWAIT: whoever changes or deletes the rule right now holds it and wants its jobs next, while the completion holds
    -- the job; to wait for each other would be a deadlock. So the completion lets go, and the queue repeats it.
    PERFORM FROM rules WHERE id = of_rule FOR NO KEY UPDATE NOWAIT;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no rule %', of_rule USING ERRCODE = 'foreign_key_violation';
    END IF;
    UPDATE rules SET embedding = numbers::vector, embedding_dimensions = cardinality(numbers), embedding_model = model,
        embedded_at = now(), embedding_ms = took_ms
    WHERE id = of_rule AND text_hash = hash AND EXISTS (SELECT FROM embedding_model WHERE name = model);
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
    CREATE INDEX rules_embedding ON rules USING hnsw (embedding vector_cosine_ops);
    FOR each IN SELECT * FROM rules ORDER BY created_at, id LOOP
        PERFORM submit_embedding(each, 25, false);
        again := again + 1;
    END LOOP;
    RETURN again;
END
$$;
