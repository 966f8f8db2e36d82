"""The program: its artefact, emitted kernel, report, and views for listings, timelines and annotations."""
