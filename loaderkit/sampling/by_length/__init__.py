"""Plans that arrange samples by length: buckets, token budgets and packed rows."""
