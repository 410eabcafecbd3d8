"""Rows of records: conversations, preference pairs and documents as token ids, and the files that rows name."""
