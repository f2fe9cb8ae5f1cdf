"""What is learned: each objective says how much there is to predict in a batch, and the sum of its losses."""
