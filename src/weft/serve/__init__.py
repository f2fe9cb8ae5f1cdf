"""One server for every task: a thin front that speaks HTTP, and worker processes that hold the models."""
