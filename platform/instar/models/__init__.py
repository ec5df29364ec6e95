"""Model clients: any provider through litellm, and the local engine."""
