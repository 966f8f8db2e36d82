"""Views of a program for people: timeline, memory annotation, origin of every element."""
