"""Conversations and preference pairs as token ids and labels."""
