"""Skill folders (SKILL.md): reading, checking, distilling and choosing them."""
