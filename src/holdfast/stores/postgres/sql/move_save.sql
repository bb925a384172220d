-- Remember how far a move is. Index: the primary key.
INSERT INTO holdfast.move (state) VALUES ($1) ON CONFLICT (only_one) DO UPDATE SET state = excluded.state
