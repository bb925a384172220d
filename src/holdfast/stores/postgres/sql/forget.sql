-- Workers that are gone.
DELETE FROM holdfast.worker WHERE worker_id = ANY ($1::text[])
