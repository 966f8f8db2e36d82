"""From the plan to the program: words, images, artefact and report."""
