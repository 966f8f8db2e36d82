"""The host's steps of a program: computed, recorded in manifests, copied between layouts, written as C."""
