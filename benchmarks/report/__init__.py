"""From rows to figures, tables, pictures and verdicts."""
