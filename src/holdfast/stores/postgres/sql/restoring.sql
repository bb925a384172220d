-- From here to the end of the transaction, what is moved into this store may be written.
SELECT set_config('holdfast_move.restoring', 'on', true)
