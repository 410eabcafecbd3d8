"""Datasets of records: conversations, preference pairs and documents as token ids, and media files that rows name."""
