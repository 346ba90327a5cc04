"""The judge of edits: rubrics, prompts, what a reply means, and the backends that give scores."""
