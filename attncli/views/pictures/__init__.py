"""Pictures of a report that matplotlib draws."""
