-- QueueFull where a limited queue has no room for so many jobs more.
SELECT holdfast.refuse_over_limit(queue, coming) FROM unnest($1::text[], $2::bigint[]) AS n (queue, coming)
