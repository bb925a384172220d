-- Consume an edge, once.
UPDATE edge SET met = 1 WHERE parent_id = :parent AND child_id = :child AND met = 0
