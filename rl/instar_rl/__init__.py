"""Gradient optimisers for open models: components, recipes, trainer, distillation."""
