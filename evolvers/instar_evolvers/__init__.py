"""Gradient-free optimisers over a candidate's named components, and the worlds that test them."""
