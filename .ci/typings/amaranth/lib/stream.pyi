# Amaranth makes the attributes of values, views and components at run time: to a type checker they are Any.
from typing import Any

class Signature(Any): ...
