"""The program: artefact, emitted kernel, report, and what its parts are for people."""
