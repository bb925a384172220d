-- QueueFull where a limited queue has no room for those of the jobs that are due. Says nothing else.
SELECT holdfast.refuse_over_limits($1::text[], $2::bigint[], $3::bigint)
