"""What happens at a client: learner, losses, local update rules, tasks."""
