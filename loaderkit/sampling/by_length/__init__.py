"""Plans that look at the lengths of samples: buckets, token budgets, packing."""
