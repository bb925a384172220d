-- What would be half done if the queue stood still now. Index: job_processing.
SELECT (SELECT count(*) FROM holdfast.job WHERE status = 'processing') + (SELECT count(*) FROM holdfast.release_due)
    + (SELECT count(*) FROM holdfast.unpack_due) + (SELECT count(*) FROM holdfast.join_due)
