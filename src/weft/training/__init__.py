"""One plain loop for every objective: update, evaluate, save, and go on from where a run was broken off."""
