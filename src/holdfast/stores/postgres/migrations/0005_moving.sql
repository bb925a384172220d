-- Moving house: how far a move is, and what keeps a queue from changing meanwhile. The triggers are made when a move
-- begins and dropped when it is given up, so that a queue which does not move pays nothing for them.

CREATE TABLE holdfast.move (
    only_one boolean PRIMARY KEY DEFAULT true CHECK (only_one),
    state    text NOT NULL -- JSON
);

-- The argument of the trigger is what it says. Whoever writes what is moved into here sets holdfast_move.restoring.
CREATE FUNCTION holdfast.refuse_moved() RETURNS trigger LANGUAGE plpgsql AS
$$
BEGIN
    IF coalesce(current_setting('holdfast_move.restoring', true), '') = 'on' THEN
        RETURN NEW; -- of a statement: none
    END IF;
    RAISE EXCEPTION '%', TG_ARGV[0] USING ERRCODE = 'HF006';
END
$$;
