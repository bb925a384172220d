-- Transfer: its state, and triggers that protect a queue from changes in the meantime. They are created when a transfer
-- begins and dropped when it is abandoned, so that a queue that is not in transfer pays nothing for them.

CREATE TABLE backstay.move (
    only_one boolean PRIMARY KEY DEFAULT true CHECK (only_one),
    state    text NOT NULL -- JSON
);

-- The argument of the trigger is its message. A restore sets backstay_move.restoring.
CREATE FUNCTION backstay.refuse_moved() RETURNS trigger LANGUAGE plpgsql AS
$$
BEGIN
    IF coalesce(current_setting('backstay_move.restoring', true), '') = 'on' THEN
        RETURN NEW; -- of a statement: none
    END IF;
    RAISE EXCEPTION '%', TG_ARGV[0] USING ERRCODE = 'BS006';
END
$$;
