"""The round loop: cohort, state, checkpoint, evaluation, onboarding; imports server and the algorithm protocol."""
