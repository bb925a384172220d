-- Remember how far the sums go.
INSERT INTO holdfast.summed (until) VALUES ($1) ON CONFLICT (only_one) DO UPDATE SET until = excluded.until
