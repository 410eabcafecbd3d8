"""The preprocessing of tables, fitted on the training rows."""
