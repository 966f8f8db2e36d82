"""What a program is, for people: timeline, memory annotation, origin of every element."""
